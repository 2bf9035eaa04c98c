"""Draw jobs over time in a terminal: one line per job, one character per time step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.overview.gantt import HELD, PLANNED, STARTS_WITHIN, WAITED
from drumline.overview.rows import GanttRow
from drumline_cli.formatting import clock
from drumline_cli.report.time_axis import TimeAxis, ticks

SIGNS: Final = {
    WAITED: "\N{MIDDLE DOT}",
    HELD: "\N{FULL BLOCK}",
    PLANNED: "\N{LIGHT SHADE}",
    STARTS_WITHIN: "~",
}
_NOW: Final = "\N{BOX DRAWINGS LIGHT VERTICAL}"
_UNKNOWN: Final = "?"
_LEAST: Final = 24
_LONGEST_NAME: Final = 40
LEGEND: Final = (
    f"{SIGNS[WAITED]} waited  {SIGNS[HELD]} held  {SIGNS[PLANNED]} planned "
    f" {SIGNS[STARTS_WITHIN]} expected to start within  {_NOW} now  {_UNKNOWN} unknown duration"
)


def render(rows: Sequence[GanttRow], *, now: float, since: float, until: float, width: int) -> str:
    """Return the chart with its axis (UTC) and legend.

    Args:
        rows: the jobs.
        now: current time, drawn as a line.
        since: time of the left edge, in seconds since the epoch.
        until: time of the right edge.
        width: width of the terminal, in characters.
    """
    if not rows:
        return "no job held GPUs or waited in this time\n"
    names = [_cut(row.job) for row in rows]
    left = max(map(len, names)) + 1 + max(len(str(row.gpus)) for row in rows)
    room = max(_LEAST, width - left - 2)
    across = TimeAxis(begins=since, span=until - since, left=0.0, width=float(room))
    lines = [
        f"{name}{' ' * (left - len(name) - len(str(row.gpus)))}{row.gpus}  "
        + _line(row, across, now=now, room=room)
        for name, row in zip(names, rows, strict=True)
    ]
    margin = " " * (left + 2)
    head = f"GPUs by job, {clock(since)} to {clock(until)}"
    text = "\n".join((head, *lines, margin + _axis(across, room), LEGEND))
    return f"{text}\n"


def _line(row: GanttRow, across: TimeAxis, *, now: float, room: int) -> str:
    cells = [" "] * room
    for bar in row.bars:
        end = across.begins + across.span if bar.ends_at is None else bar.ends_at
        first = min(int(across(bar.begins_at)), room - 1)
        last = max(first, int(across(end)) - 1)  # short stretches are seen, too
        cells[first : last + 1] = SIGNS[bar.state] * (last + 1 - first)
        if bar.ends_at is None:
            cells[last] = _UNKNOWN
    at = min(int(across(now)), room - 1)
    if cells[at] == " ":
        cells[at] = _NOW
    return "".join(cells).rstrip()


def _axis(across: TimeAxis, room: int) -> str:
    """Return labels at round times, as many as fit."""
    cells = [" "] * room
    free = 0
    for tick in ticks(across):
        at = int(tick.x)
        if at >= free and at + len(tick.label) <= room:
            cells[at : at + len(tick.label)] = tick.label
            free = at + len(tick.label) + 2
    return "".join(cells).rstrip()


def _cut(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
