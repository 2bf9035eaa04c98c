"""Draw jobs over time as SVG, and as one HTML file without scripts or external content.

The classes are those of report.css, for light and dark mode. Each bar's tooltip and `drumline gantt
-o json` contain the same facts as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from drumline.overview.gantt import HELD, PLANNED, STARTS_WITHIN, WAITED
from drumline.overview.rows import GanttBar, GanttRow
from drumline_cli.formatting import clock, duration, many
from drumline_cli.markup import Markup, element, joined
from drumline_cli.report import charts
from drumline_cli.report.time_axis import TimeAxis

WORDS: Final = {
    WAITED: "waited",
    HELD: "held its GPUs",
    PLANNED: "will hold them",
    STARTS_WITHIN: "expected to start",
}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_NAMES: Final = 232
_ROW: Final = 22
_LETTERS: Final = 24


def page(rows: Sequence[GanttRow], *, now: float, since: float, until: float) -> str:
    """Return the whole document.

    Args:
        rows: rows to show.
        now: Unix time in seconds.
        since: Unix time of the left edge.
        until: Unix time of the right edge.
    """
    style = Markup(files("drumline_cli.report").joinpath("report.css").read_text(encoding="utf-8"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", "Drumline: jobs over time"),
        element("style", style),
    )
    shown = (
        chart(rows, now=now, since=since, until=until)
        if rows
        else element("p", "No job held GPUs or waited in this time.", class_="lead")
    )
    foot = element("footer", element("p", f"As of {clock(now)}. All times are UTC."))
    body = element("body", element("main", element("h1", "Jobs over time"), shown, foot))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def chart(rows: Sequence[GanttRow], *, now: float, since: float, until: float) -> Markup:
    """Return the picture and its legend.

    Args:
        rows: at least one job.
        now: current time, drawn as a line, in seconds since the epoch.
        since: time of the left edge.
        until: time of the right edge.
    """
    across = TimeAxis(
        begins=since, span=until - since, left=_NAMES, width=charts.WIDTH - _NAMES - 8
    )
    # The height grows by the number of jobs.
    bottom = _ROW * len(rows) + 6
    x = across(now)
    picture = charts.picture(
        "gantt",
        "Jobs over time",
        f"{many(len(rows), 'job')} from {clock(since)} to {clock(until)}",
        charts.axis(across, bottom=bottom),
        *(_row(row, across, top=number * _ROW) for number, row in enumerate(rows)),
        element("line", x1=x, y1=0, x2=x, y2=bottom, class_="now"),
        height=bottom + 26,
    )
    used = {bar.state for row in rows for bar in row.bars}
    keys = (
        element("li", charts.key(state), words) for state, words in WORDS.items() if state in used
    )
    return joined(picture, element("ul", *keys, class_="legend"))


def _row(row: GanttRow, across: TimeAxis, *, top: int) -> Markup:
    # The namespace is in the tooltip, since the space for names is small.
    name = row.job.partition("/")[2]
    if len(name) > _LETTERS:
        name = f"{name[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
    label = element(
        "text",
        element("title", f"{row.job} of {row.queue}: {row.phase}"),
        f"{name}, {row.gpus}",
        x=_NAMES - 12,
        y=top + 16,
        class_="name",
    )
    return joined(label, *(_bar(row, bar, across, top=top) for bar in row.bars))


def _bar(row: GanttRow, bar: GanttBar, across: TimeAxis, *, top: int) -> Markup:
    x = across(bar.begins_at)
    # An open end reaches the right edge.
    ends = across.begins + across.span if bar.ends_at is None else bar.ends_at
    what = f"{row.job}: {WORDS[bar.state]}"
    if bar.ends_at is None:
        what += f" from {clock(bar.begins_at)}, for an unknown time"
    else:
        length = duration(bar.ends_at - bar.begins_at)
        what += f" from {clock(bar.begins_at)} to {clock(bar.ends_at)}, {length}"
    return element(
        "rect",
        element("title", what),
        x=x,
        y=top + 4,
        # A short bar needs a minimum width to be visible.
        width=max(across(ends) - x, 1.5),
        height=_ROW - 7,
        rx=2,
        class_=f"band {charts.slug(bar.state)}{' open' if bar.ends_at is None else ''}",
    )
