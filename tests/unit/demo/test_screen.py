"""What reaches standard output, on a terminal and elsewhere."""

from __future__ import annotations

import os
import re

import pytest

from tools.demo.screen import Screen


def test_without_a_terminal_no_control_character_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Screen()
    screen.title("Part")
    screen.live("busy")
    screen.say("done")
    screen.live("")
    written = capsys.readouterr().out
    assert re.fullmatch(r"\nPart\n +\d+:\d\d  done\n", written), written


def test_on_a_terminal_a_line_replaces_the_live_one_which_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        screen = Screen()
        screen.live("busy")
        screen.plain("done")
        live = "\r\x1b[K\x1b[2mbusy\x1b[0m"
        wanted = f"{live}\r\x1b[Kdone\r\n{live}"
        with os.fdopen(ours, "rb") as other_end:
            assert other_end.read(len(wanted)).decode() == wanted
