"""The same rows as text, SVG and PNG."""

from __future__ import annotations

import re
from pathlib import Path

from drumline.overview.gantt import HELD, PLANNED, STARTS_WITHIN, WAITED
from drumline.overview.rows import GanttBar, GanttRow
from drumline_console.gantt import chart, picture, text
from tests.texts import missing
from tests.unit.overview.objects import NOW

SINCE, UNTIL = NOW - 3600, NOW + 3600
ROWS = (
    GanttRow(
        job="team/llama",
        queue="research",
        phase="Running",
        gpus=8,
        bars=(
            GanttBar(state=WAITED, begins_at=NOW - 7200, ends_at=NOW - 1800),
            GanttBar(state=HELD, begins_at=NOW - 1800, ends_at=NOW),
            GanttBar(state=PLANNED, begins_at=NOW),
        ),
    ),
    GanttRow(
        job="team/big",
        queue="research",
        phase="Pending",
        gpus=32,
        position=1,
        bars=(GanttBar(state=STARTS_WITHIN, begins_at=NOW + 1800, ends_at=NOW + 2700),),
    ),
)


def test_a_character_is_a_piece_of_time() -> None:
    shown = text.render(ROWS, now=NOW, since=SINCE, until=UNTIL, width=15 + 40)
    _, llama, big, axis, _ = shown.splitlines()
    assert llama == "team/llama  8  " + "·" * 10 + "█" * 10 + "░" * 19 + "?"
    assert big == "team/big   32  " + " " * 20 + "│" + " " * 9 + "~" * 5
    assert axis.split() == ["07:00", "07:30", "08:00", "08:30"]
    assert axis.index("08:00") == 15 + 20


def test_a_narrow_terminal_and_no_rows_are_drawn_too() -> None:
    shown = text.render(ROWS, now=NOW, since=SINCE, until=UNTIL, width=10)
    assert max(map(len, shown.splitlines()[1:-2])) == 15 + 24
    assert text.render((), now=NOW, since=SINCE, until=UNTIL, width=80).startswith("no job")


def test_every_bar_of_the_page_says_what_it_is() -> None:
    page = chart.page(ROWS, now=NOW, since=SINCE, until=UNTIL)
    said = re.findall(r"<title>([^<]*)</title>", page)
    assert any(
        not missing(each, "team/llama", "2027-01-15 08:00:00Z") and "will" in each for each in said
    )
    assert [
        sign for sign in ("waited", "held", "planned", "startswithin") if f"band {sign}" in page
    ]
    assert "<script" not in page
    assert "No job held GPUs" in chart.page((), now=NOW, since=SINCE, until=UNTIL)


def test_names_of_tenants_are_text() -> None:
    hostile = GanttRow(
        job="team/<script>", queue='"><img src=x>', phase="x", gpus=1, bars=ROWS[0].bars
    )
    page = chart.page((hostile,), now=NOW, since=SINCE, until=UNTIL)
    assert "<script" not in page
    assert "<img" not in page


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    file = tmp_path / "gantt.png"
    picture.save(ROWS, file, now=NOW, since=SINCE, until=UNTIL)
    assert file.read_bytes().startswith(b"\x89PNG")
