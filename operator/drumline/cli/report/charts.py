"""The pictures of a report as inline SVG: a job's life, one recovery, where GPU-seconds went.

Colours are classes that report.css defines for light and dark. Each picture says in words what it
shows (`title`, `desc`), and everything it shows stands in a table or a sentence beside it.
"""

from __future__ import annotations

from drumline.cli.formatting import clock, duration, exact, percent
from drumline.cli.markup import Markup, element, joined
from drumline.cli.report import time_axis as scale
from drumline.cli.report.model import IncidentStory, Share, Stage, Story, Stretch
from drumline.cli.report.time_axis import Scale

WIDTH = 960
_NAMES = 124
"""Where the bars of a recovery begin; left of it stand the names of its stages."""
_FIGURES = 124
"""Room at the right of the longest bar for its seconds."""
_ROW = 30


def recovery(incident: IncidentStory) -> Markup:
    """The stages of one recovery below each other, on one scale of seconds since the fault."""
    bottom = _ROW * len(incident.stages) + 4
    across = Scale(begins=0.0, span=incident.seconds, left=_NAMES, width=WIDTH - _NAMES - _FIGURES)
    told = ", ".join(f"{stage.name} {exact(stage.milliseconds)}" for stage in incident.stages)
    return _picture(
        f"recovery-{slug(incident.number)}",
        "How long each stage of the recovery took",
        told,
        _axis(across, bottom=bottom),
        *(
            _stage(stage, across, began=incident.at, top=number * _ROW)
            for number, stage in enumerate(incident.stages)
        ),
        height=bottom + 26,
    )


def life(story: Story) -> Markup:
    """The job's life as one band, with a mark for each incident."""
    begins = story.life[0].begins_at
    ends = story.life[-1].ends_at
    across = Scale(begins=begins, span=ends - begins, left=8, width=WIDTH - 16)
    marked = [one for one in reversed(story.incidents) if begins <= one.at <= ends]
    told = ", ".join(f"{s.state} for {duration(s.ends_at - s.begins_at)}" for s in story.life)
    told += f"; incidents marked: {len(marked)}" if marked else ""
    return _picture(
        "life",
        "The job's life",
        told,
        _axis(across, bottom=64),
        *(_stretch(stretch, across) for stretch in story.life),
        *(_mark(incident, x=across(incident.at)) for incident in marked),
        height=90,
    )


def shares(story: Story) -> Markup:
    """All GPU-seconds as one band."""
    pieces: list[Markup] = []
    x = 0.0
    for share in story.shares:
        pieces.append(_share(share, x=x))
        x += share.share * WIDTH
    told = ", ".join(f"{share.state} {percent(share.share)}" for share in story.shares)
    return _picture("shares", "Where the GPU-seconds went", told, *pieces, height=36)


def key(name: str) -> Markup:
    """The small square of a legend."""
    square = element("rect", width=12, height=12, rx=3, class_=f"band {slug(name)}")
    return element("svg", square, width=12, height=12, aria_hidden="true", class_="key")


def slug(name: str) -> str:
    """A name as a class of report.css; what the sheet does not know gets its default colour."""
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in name.lower())


def _picture(identity: str, title: str, told: str, *content: Markup, height: int) -> Markup:
    picture = element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", told, id=f"{identity}-desc"),
        *content,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
        class_=f"picture {identity}",
    )
    return element("div", picture, class_="wide", tabindex="0", role="group", aria_label=title)


def _stage(stage: Stage, across: Scale, *, began: float, top: int) -> Markup:
    x = across(stage.begins_at - began)
    width = max(stage.seconds * across.per_second, 2.0)
    told = exact(stage.milliseconds) + (" so far" if stage.under_way else "")
    bar = element(
        "rect",
        element("title", f"{stage.name}: {told}, {stage.meaning}"),
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
        element("text", told, x=x + width + 8, y=top + 20, class_="figure"),
    )


def _stretch(stretch: Stretch, across: Scale) -> Markup:
    seconds = stretch.ends_at - stretch.begins_at
    told = f"{stretch.state}: {duration(seconds)}, from {clock(stretch.begins_at)}"
    return element(
        "rect",
        element("title", told),
        x=across(stretch.begins_at),
        y=26,
        width=max(seconds * across.per_second, 1.5),
        height=28,
        class_=f"band {slug(stretch.state)}",
    )


def _mark(incident: IncidentStory, *, x: float) -> Markup:
    told = f"{incident.fault_class}, {clock(incident.at)}: {incident.cause}"
    return element(
        "g",
        element("title", told),
        element("path", d=f"M{x - 6:.1f} 6 h12 l-6 11 z"),
        element("line", x1=x, y1=16, x2=x, y2=54),
        class_="mark",
    )


def _share(share: Share, *, x: float) -> Markup:
    return element(
        "rect",
        element("title", f"{share.state}: {percent(share.share)}"),
        x=x,
        y=4,
        width=max(share.share * WIDTH, 1.0),
        height=28,
        class_=f"band {slug(share.state)}",
    )


def _axis(across: Scale, *, bottom: int) -> Markup:
    ticks: list[Markup] = []
    for tick in scale.ticks(across):
        anchor = "start" if tick.x < 40 else "end" if tick.x > WIDTH - 40 else "middle"
        ticks.append(element("line", x1=tick.x, y1=0, x2=tick.x, y2=bottom, class_="grid"))
        ticks.append(
            element("text", tick.label, x=tick.x, y=bottom + 18, text_anchor=anchor, class_="tick")
        )
    return element("g", *ticks, aria_hidden="true")
