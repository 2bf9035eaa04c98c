"""The charts of a report as inline SVG: timeline, one recovery.

Colours are classes that report.css defines for light and dark. Each picture says in words what it
shows (`title`, `desc`), and everything it shows stands in a table or a sentence beside it.
"""

from __future__ import annotations

from drumline_cli.formatting import clock, duration, exact
from drumline_cli.markup import Markup, element, joined
from drumline_cli.report import time_axis
from drumline_cli.report.model import IncidentReport, JobReport, RecoveryStage, TimelineSpan
from drumline_cli.report.time_axis import TimeAxis

WIDTH = 960
_NAMES = 124
"""Left edge of the bars. The names of the stages are to the left of it."""
_FIGURES = 124
"""Room at the right of the longest bar for its seconds."""
_ROW = 30


def recovery(incident: IncidentReport) -> Markup:
    """Draw the stages of one recovery below each other, in seconds since the fault."""
    bottom = _ROW * len(incident.stages) + 4
    # Room for the names and for the seconds, so that labels never overlap bars.
    across = TimeAxis(
        begins=0.0, span=incident.seconds, left=_NAMES, width=WIDTH - _NAMES - _FIGURES
    )
    description = ", ".join(
        f"{stage.name} {exact(stage.milliseconds)}" for stage in incident.stages
    )
    return picture(
        f"recovery-{slug(incident.number)}",
        "Duration of each stage of the recovery",
        description,
        axis(across, bottom=bottom),
        *(
            _stage(stage, across, began=incident.at, top=number * _ROW)
            for number, stage in enumerate(incident.stages)
        ),
        height=bottom + 26,
    )


def timeline(report: JobReport) -> Markup:
    """Return the job's timeline as one band, with a mark for each incident."""
    begins = report.timeline[0].begins_at
    ends = report.timeline[-1].ends_at
    across = TimeAxis(begins=begins, span=ends - begins, left=8, width=WIDTH - 16)
    # Oldest first, so that newer marks are drawn on top.
    marked = [incident for incident in reversed(report.incidents) if begins <= incident.at <= ends]
    description = ", ".join(
        f"{s.state} for {duration(s.ends_at - s.begins_at)}" for s in report.timeline
    )
    description += f"; incidents marked: {len(marked)}" if marked else ""
    return picture(
        "life",
        "Timeline of the job",
        description,
        axis(across, bottom=64),
        *(_span(span, across) for span in report.timeline),
        *(_mark(incident, x=across(incident.at)) for incident in marked),
        height=90,
    )


def key(name: str) -> Markup:
    """Return the small square of a legend."""
    square = element("rect", width=12, height=12, rx=3, class_=f"band {slug(name)}")
    return element("svg", square, width=12, height=12, aria_hidden="true", class_="key")


def slug(name: str) -> str:
    """Return a name as a class of report.css.

    What the sheet does not know gets its default colour.
    """
    # Class names contain only letters, digits and hyphens.
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in name.lower())


def picture(identity: str, title: str, description: str, *content: Markup, height: int) -> Markup:
    """Return a drawing `WIDTH` units wide with its description, scrolled if it is too wide.

    Args:
        identity: id of the element.
        title: title for screen readers.
        description: description for screen readers.
        *content: elements of the drawing.
        height: height in units.
    """
    picture = element(
        "svg",
        # `id` connects the text to the picture for screen readers.
        element("title", title, id=f"{identity}-title"),
        element("desc", description, id=f"{identity}-desc"),
        *content,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
        class_=f"picture {identity}",
    )
    return element("div", picture, class_="wide", tabindex="0", role="group", aria_label=title)


def axis(across: TimeAxis, *, bottom: int) -> Markup:
    """Draw lines and labels at round times."""
    ticks: list[Markup] = []
    for tick in time_axis.ticks(across):
        # Labels at the edges would be cut if they were centred.
        anchor = "start" if tick.x < 40 else "end" if tick.x > WIDTH - 40 else "middle"
        ticks.append(element("line", x1=tick.x, y1=0, x2=tick.x, y2=bottom, class_="grid"))
        ticks.append(
            element("text", tick.label, x=tick.x, y=bottom + 18, text_anchor=anchor, class_="tick")
        )
    return element("g", *ticks, aria_hidden="true")


def _stage(stage: RecoveryStage, across: TimeAxis, *, began: float, top: int) -> Markup:
    x = across(stage.begins_at - began)
    # Two units keep a very short stage visible.
    width = max(stage.seconds * across.per_second, 2.0)
    description = exact(stage.milliseconds) + (" so far" if stage.under_way else "")
    bar = element(
        "rect",
        element("title", f"{stage.name}: {description}, {stage.meaning}"),
        x=x,
        y=top + 5,
        width=width,
        height=_ROW - 10,
        rx=3,
        class_=f"band {slug(stage.name)}{' under-way' if stage.under_way else ''}",
    )
    return joined(
        element("text", stage.name, x=_NAMES - 12, y=top + 20, class_="name"),
        bar,
        element("text", description, x=x + width + 8, y=top + 20, class_="figure"),
    )


def _span(span: TimelineSpan, across: TimeAxis) -> Markup:
    seconds = span.ends_at - span.begins_at
    description = f"{span.state}: {duration(seconds)}, from {clock(span.begins_at)}"
    return element(
        "rect",
        element("title", description),
        x=across(span.begins_at),
        y=26,
        width=max(seconds * across.per_second, 1.5),
        height=28,
        class_=f"band {slug(span.state)}",
    )


def _mark(incident: IncidentReport, *, x: float) -> Markup:
    description = f"{incident.fault_class}, {clock(incident.at)}: {incident.cause}"
    return element(
        "g",
        element("title", description),
        element("path", d=f"M{x - 6:.1f} 6 h12 l-6 11 z"),
        element("line", x1=x, y1=16, x2=x, y2=54),
        class_="mark",
    )
