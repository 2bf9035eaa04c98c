"""Jobs over time as one HTML file: no scripts, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from drumline.cli.formatting import clock
from drumline.cli.gantt.chart import chart
from drumline.cli.markup import Markup, element
from drumline.overview.rows import GanttRow

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(rows: Sequence[GanttRow], *, now: float, since: float, until: float) -> str:
    """The whole document."""
    style = Markup(files("drumline.cli.report").joinpath("report.css").read_text(encoding="utf-8"))
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
