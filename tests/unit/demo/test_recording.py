"""A recording of the demo as an animated SVG, and the one in the repository."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree as ET

from tools.demo import recording

SVG = "{http://www.w3.org/2000/svg}"


def cast(*events: tuple[float, str]) -> list[str]:
    return [json.dumps({"version": 2}), *(json.dumps([at, "o", text]) for at, text in events)]


def test_lines_have_the_time_of_their_end_with_long_pauses_shortened() -> None:
    lines = recording.screen_lines(cast((0.5, "one\r\ntw"), (9.5, "o\r\n")))
    assert [(line.seconds, line.text) for line in lines] == [(0.5, "one"), (1.3, "two")]


def test_the_live_line_is_left_out_and_a_title_is_bold() -> None:
    live = "\r\x1b[K\x1b[2mcluster: 3 s\x1b[0m\r\x1b[K"
    (line,) = recording.screen_lines(cast((0.1, f"{live}\x1b[1mCluster\x1b[0m\r\n")))
    assert (line.text, line.bold) == ("Cluster", True)


def test_a_long_line_continues_in_the_next_row() -> None:
    lines = recording.screen_lines(cast((0.1, "x" * (recording.COLUMNS + 3) + "\r\n")))
    assert [len(line.text) for line in lines] == [recording.COLUMNS, 3]


def test_text_is_escaped_and_each_line_appears_at_its_time() -> None:
    drawn = recording.svg([recording.Line(seconds=2.0, text="a < b")])
    root = ET.fromstring(drawn)  # noqa: S314 - drawn a line above
    (text,) = root.iter(f"{SVG}text")
    assert text.text == "a < b"
    (appears,) = text.iter(f"{SVG}animate")
    assert appears.get("keyTimes") == f"0;{2 / (2 + recording.LAST_SCREEN_SECONDS):.4f}"


def test_a_command_is_recorded_on_a_terminal() -> None:
    program = "import sys; print(sys.stdout.isatty()); sys.exit(3)"
    code, lines = recording.record([sys.executable, "-c", program])
    assert code == 3
    assert [line.text for line in recording.screen_lines(lines)] == ["True"]


def test_the_picture_is_that_of_the_recording() -> None:
    lines = recording.screen_lines(recording.CAST.read_text().splitlines())
    assert recording.PICTURE.read_text() == recording.svg(lines), "run recording.py --draw"
    assert any("Succeeded: finished at step" in line.text for line in lines)
