"""The charts of a run over its steps as inline SVG: loss, speed, gradient norm, parts of a step.

As those of `charts`: colours are classes, and each picture says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from drumline_cli.formatting import amount, count, duration, percent
from drumline_cli.markup import Markup, element
from drumline_cli.report.charts import WIDTH, picture, slug
from drumline_cli.report.figure_axis import FigureAxis, spanning
from drumline_cli.report.model import IncidentReport, JobReport
from drumline_contract import StepPoint
from drumline_contract.step_series import PARTS

LEFT: Final = 72
RIGHT: Final = WIDTH - 12
_TOP: Final = 24
LOSS_HEIGHT: Final = 230
HEIGHT: Final = 120
PARTS_HEIGHT: Final = 190
FIGURES: Final[dict[str, Callable[[StepPoint], float | None]]] = {
    "Loss": lambda point: point.loss,
    "Tokens/s": lambda point: point.tokens_per_second,
    "Gradient norm": lambda point: point.gradient_norm,
    "Seconds a step": lambda point: point.step_seconds,
}
"""Figures with a chart of their own, by title."""


def line(report: JobReport, title: str) -> Markup:
    """Draw one figure of `FIGURES` over the steps, with marks. Empty below two known values."""
    known = [(point.step, value) for point, value in known_figures(report.series, title)]
    # One point makes no line.
    if len(known) < 2:
        return Markup("")
    height = LOSS_HEIGHT if title == "Loss" else HEIGHT
    # The steps of the whole series define the axis, so all charts align.
    across, up = _axes(report.series, [value for _, value in known], height=height)
    path = " ".join(f"{across(step):.1f},{up(value):.1f}" for step, value in known)
    values = [value for _, value in known]
    description = (
        f"from {amount(values[0])} at step {count(known[0][0])} to {amount(values[-1])} at step"
        f" {count(known[-1][0])}; lowest {amount(min(values))}, highest {amount(max(values))}"
    )
    # The dots carry the tooltips, since a line has none per point.
    dots = (
        element(
            "circle",
            element("title", f"{title} {amount(value)} at step {count(step)}"),
            cx=across(step),
            cy=up(value),
            r=5,
            class_="point",
        )
        for step, value in known
    )
    return picture(
        f"line-{slug(title)}",
        f"{title} by step",
        description,
        *_grid(across, up, height=height),
        *(_marks(report, across, height=height) if title == "Loss" else ()),
        element("polyline", points=path, class_="line"),
        *dots,
        height=height + 26,
    )


def known_figures(series: Sequence[StepPoint], title: str) -> list[tuple[StepPoint, float]]:
    """Return the points at which a figure of `FIGURES` is known."""
    value_of = FIGURES[title]
    known = ((point, value_of(point)) for point in series)
    return [(point, value) for point, value in known if value is not None]


def parts_in(series: Sequence[StepPoint]) -> tuple[str, ...]:
    """Return the parts that any point has, in their order."""
    return tuple(part for part in PARTS if any(point.parts.get(part) for point in series))


def parts(series: Sequence[StepPoint]) -> Markup:
    """Draw the seconds of a step by part, as stacked areas. Empty below two known points."""
    timed = [point for point in series if point.parts and point.step_seconds]
    if len(timed) < 2:
        return Markup("")
    # The height of the stack is the time of the step.
    heights = [point.step_seconds or 0.0 for point in timed]
    across, up = _axes(series, heights, height=PARTS_HEIGHT, from_zero=True)
    # Each area starts where the one below it ends.
    below = [0.0] * len(timed)
    areas: list[Markup] = []
    for part in parts_in(timed):
        above = [low + _seconds(point, part) for low, point in zip(below, timed, strict=True)]
        areas.append(_area(part, timed, below, above, across=across, up=up))
        below = above
    newest = timed[-1]
    said = ", ".join(f"{part} {percent(newest.parts[part] / 1000)}" for part in parts_in([newest]))
    return picture(
        "step-parts",
        "Parts of the step time",
        f"at step {count(newest.step)}: {duration(newest.step_seconds or 0.0)} per step, {said}",
        *areas,
        *_grid(across, up, height=PARTS_HEIGHT),
        height=PARTS_HEIGHT + 26,
    )


def _seconds(point: StepPoint, part: str) -> float:
    return (point.step_seconds or 0.0) * point.parts.get(part, 0) / 1000


def _area(
    part: str,
    points: Sequence[StepPoint],
    below: Sequence[float],
    above: Sequence[float],
    *,
    across: FigureAxis,
    up: FigureAxis,
) -> Markup:
    xs = [across(point.step) for point in points]
    upper = [f"{x:.1f},{up(y):.1f}" for x, y in zip(xs, above, strict=True)]
    lower = [f"{x:.1f},{up(y):.1f}" for x, y in zip(xs, below, strict=True)]
    shares = [point.parts.get(part, 0) / 1000 for point in points]
    said = f"{part}: {percent(min(shares))} to {percent(max(shares))} of a step"
    return element(
        "polygon",
        element("title", said),
        # The polygon runs forward above and back below.
        points=" ".join([*upper, *reversed(lower)]),
        class_=f"band part-{slug(part)}",
    )


def _axes(
    series: Sequence[StepPoint],
    values: Sequence[float],
    *,
    height: int,
    from_zero: bool = False,
) -> tuple[FigureAxis, FigureAxis]:
    across = spanning([point.step for point in series], at_low=LEFT, at_high=RIGHT)
    up = spanning(values, at_low=height - 6, at_high=_TOP, from_zero=from_zero)
    return across, up


def _grid(across: FigureAxis, up: FigureAxis, *, height: int) -> Iterator[Markup]:
    for value in up.marks(5 if height > HEIGHT else 4):
        # At the right edge a centred label would be cut.
        y = up(value)
        yield element("line", x1=LEFT, y1=y, x2=RIGHT, y2=y, class_="grid")
        yield element("text", _figure(value), x=LEFT - 10, y=y + 5, class_="name tick")
    yield from step_ticks(across, y=height + 18)


def step_ticks(across: FigureAxis, *, y: float) -> Iterator[Markup]:
    """Return the numbers of round steps below a picture."""
    for step in across.marks(8):
        x = across(step)
        anchor = "end" if x > WIDTH - 40 else "middle"
        yield element("text", count(step), x=x, y=y, text_anchor=anchor, class_="tick")


def _figure(value: float) -> str:
    """Return a round figure of an axis."""
    return f"{value:.4g}" if abs(value) < 10_000 or abs(value) >= 1e9 else count(value)


def _marks(report: JobReport, across: FigureAxis, *, height: int) -> Iterator[Markup]:
    """Draw checkpoints below the curve, memberships as dashed lines, and incidents at the top."""
    series = report.series
    # A checkpoint is repeated in later points, so each is drawn once.
    for step in dict.fromkeys(point.checkpoint for point in series):
        if step is not None and series[0].step <= step <= series[-1].step:
            yield element(
                "path",
                element("title", f"checkpoint of step {count(step)}"),
                d=f"M{across(step) - 5:.1f} {height - 1} h10 l-5 -9 z",
                class_="saved",
            )
    for before, after in pairwise(series):
        # The membership changed between two points, so the line is in the middle.
        if after.generation is not None and before.generation not in (None, after.generation):
            x = across((before.step + after.step) / 2)
            said = f"generation {after.generation} trains from step {count(before.step)}"
            yield element(
                "g",
                element("title", said),
                element("line", x1=x, y1=_TOP - 4, x2=x, y2=height - 6, class_="membership"),
                element("text", f"g{after.generation}", x=x + 4, y=_TOP + 8, class_="tick"),
            )
    for incident in report.incidents:
        # An incident before the first known step has no place in the chart.
        if incident.failed_step is not None and (
            series[0].step <= incident.failed_step <= series[-1].step
        ):
            yield _incident(incident, x=across(incident.failed_step), bottom=height - 6)


def _incident(incident: IncidentReport, *, x: float, bottom: int) -> Markup:
    said = f"{incident.fault_class} at step {count(incident.failed_step or 0)}: {incident.cause}"
    return element(
        "g",
        element("title", said),
        element("path", d=f"M{x - 6:.1f} 6 h12 l-6 11 z"),
        element("line", x1=x, y1=16, x2=x, y2=bottom),
        class_="mark",
    )
