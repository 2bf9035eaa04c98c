"""A plan's pictures as inline SVG: bands with their legends, and curves with axes.

A band is stretched to the page and its legend is text beside it; a curve shrinks with the page,
whose style writes its words larger then: both can be read on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from drumline_cli.columns import gib
from drumline_cli.formatting import count, duration, percent
from drumline_cli.markup import Markup, element, joined
from drumline_planner.auto import recompute_words
from drumline_planner.memory import Bill
from drumline_planner.search import Planned

# Widths are in units of the SVG. The page scales them.
_BAND: Final = 1000
_WIDTH: Final = 640
_BAND_HEIGHT: Final = 36
_LEFT: Final = 70
_TOP: Final = 44
_BOTTOM: Final = 262
# Colours repeat after ten entries. The legend names each of them.
_COLOURS: Final = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#e45756",
    "#72b7b2",
    "#b279a2",
    "#eeca3b",
    "#9d755d",
    "#ff9da6",
    "#bab0ac",
)


def memory_picture(bill: Bill) -> Markup:
    """Return the lines of a bill as one band, with the memory that may be used."""
    # The scale includes the capacity, so an oversized layout reaches beyond the mark.
    scale = _BAND / max(bill.total, bill.capacity)
    entries = [(line.name, line.size * scale, gib(line.size)) for line in bill.lines]
    # One unit less keeps the mark visible at the right edge.
    limit = min(bill.capacity * scale, _BAND - 1.0)
    mark = element("line", x1=limit, y1=0, x2=limit, y2=_BAND_HEIGHT, class_="limit")
    says = f"sum: {gib(bill.total)} of {gib(bill.capacity)} usable"
    return _band("Memory by line", entries, mark, last=_entry(says, class_="limit"))


def step_picture(planned: Planned) -> Markup:
    """Return the parts of a step that take a thousandth of it, as one band."""
    time = planned.time
    scale = _BAND / time.seconds
    # The longest part comes first, because it is the one to improve.
    ordered = sorted(time.parts.items(), key=lambda entry: -entry[1])
    return _band(
        "Parts of a step",
        [
            (str(part), seconds * scale, f"{duration(seconds)}, {_share(seconds / time.seconds)}")
            for part, seconds in ordered
            # Smaller parts would be invisible, and the legend would be long.
            if seconds >= time.seconds / 1000
        ],
    )


def front_picture(front: Sequence[Planned]) -> Markup:
    """Draw memory against time of the Pareto-optimal layouts."""
    # GiB on the axis, since GPUs are sold by memory size in GiB.
    sizes = [each.bill.total / 2**30 for each in front]
    times = [each.time.seconds for each in front]
    return _scatter(
        "Memory against time",
        [
            (
                size,
                each.time.seconds,
                # Each point has a full description, because colours alone say nothing to a screen
                # reader.
                (
                    f"{each.layout}, micro-batch {each.setup.micro_batch},"
                    f" recompute {recompute_words(each)}: {gib(each.bill.total)},"
                    f" {duration(each.time.seconds)}"
                ),
            )
            for size, each in zip(sizes, front, strict=True)
        ],
        across=_linear(sizes, unit="GiB of the fullest rank", start=_LEFT, end=_WIDTH - 30),
        up=_linear(times, unit="seconds of a step", start=_BOTTOM, end=_TOP),
        stepped=True,
    )


def curve_picture(points: Sequence[tuple[int, Planned]]) -> Markup:
    """Draw the speed per GPU by number of GPUs, doubling. It is level if more GPUs pay off."""
    # Speed per GPU is level for perfect scaling, so losses are easy to see.
    speeds = [each.time.tokens_per_second / gpus for gpus, each in points]
    sizes = [float(gpus) for gpus, _ in points]
    return _scatter(
        "Speed by number of GPUs",
        [
            (
                float(gpus),
                speed,
                (
                    f"{gpus} GPUs, {each.layout}: {count(each.time.tokens_per_second)} tokens/s,"
                    f" MFU {percent(each.time.mfu)}"
                ),
            )
            for (gpus, each), speed in zip(points, speeds, strict=True)
        ],
        across=_doubling(sizes, unit="GPUs", start=_LEFT, end=_WIDTH - 30),
        # Zero belongs to the axis. Otherwise a small loss would look like a collapse.
        up=_linear([0.0, *speeds], unit="tokens/s of a GPU", start=_BOTTOM, end=_TOP),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Values on a line of the picture."""

    unit: str
    low: float
    high: float
    start: float
    """Position of `low`. `end` is the position of `high`."""
    end: float
    ticks: tuple[float, ...]
    logarithmic: bool

    def place(self, value: float) -> float:
        """Return the position of a value."""
        low, high = self.low, self.high
        # GPU counts double, so a logarithmic axis gives equal distances.
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def _linear(values: Sequence[float], *, unit: str, start: float, end: float) -> _Axis:
    """Return a linear axis between round numbers around all values, with about five ticks."""
    least, most = min(values), max(values)
    # A spread of zero would divide by zero, so 5 % of the value is the minimum.
    spread = max(most - least, 0.05 * most)
    # Steps are 1, 2 or 5 times a power of ten. The first one with at most five intervals wins.
    step = next(
        power * each
        for power in (10.0 ** math.floor(math.log10(spread / 5)) * 10**k for k in range(3))
        for each in (1, 2, 5)
        if spread / (power * each) <= 5
    )
    first, last = math.floor(least / step), math.ceil(most / step)
    # At least one interval, even if all values are equal.
    last = max(last, first + 1)
    return _Axis(
        unit=unit,
        low=first * step,
        high=last * step,
        start=start,
        end=end,
        ticks=tuple(number * step for number in range(first, last + 1)),
        logarithmic=False,
    )


def _doubling(values: Sequence[float], *, unit: str, start: float, end: float) -> _Axis:
    """Return a logarithmic axis over the values, with at most eight ticks at doublings."""
    # One point also needs a range, so the axis covers one doubling at least.
    least, most = min(values), max(*values, 2 * min(values))
    doublings = math.log2(most / least)
    # Eight labels fit the width. Skip doublings beyond that.
    stride = max(1, math.ceil(doublings / 8))
    # The small addition corrects rounding of the logarithm.
    ticks = tuple(
        least * 2**number for number in range(0, math.floor(doublings + 0.01) + 1, stride)
    )
    return _Axis(
        unit=unit, low=least, high=most, start=start, end=end, ticks=ticks, logarithmic=True
    )


def _band(
    title: str,
    entries: Sequence[tuple[str, float, str]],
    *marks: Markup,
    last: Markup | None = None,
) -> Markup:
    """Draw pieces of given widths side by side, with a legend below.

    Args:
        title: title of the picture.
        entries: name, width and figure of each piece.
        marks: markup drawn over the pieces.
        last: last entry of the legend.
    """
    pieces: list[Markup] = []
    legend: list[Markup] = []
    x = 0.0
    for number, (name, width, figure) in enumerate(entries):
        colour = _COLOURS[number % len(_COLOURS)]
        says = f"{name}: {figure}"
        # Half a unit is the minimum, so a tiny part stays visible and has a tooltip.
        piece = {"x": x, "y": 4, "width": max(width, 0.5), "height": _BAND_HEIGHT - 8}
        pieces.append(element("rect", element("title", says), **piece, fill=colour))
        legend.append(_entry(says, style=f"background:{colour}"))
        x += max(width, 0.5)
    legend += [] if last is None else [last]
    band = element(
        # The title is the tooltip, and the label serves screen readers.
        "svg",
        element("title", title),
        joined(*pieces, *marks),
        viewBox=f"0 0 {_BAND} {_BAND_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
        class_="band",
    )
    return joined(band, element("ul", *legend, class_="legend"))


def _entry(says: str, **mark: str) -> Markup:
    return element("li", element("i", **mark), says)


def _scatter(
    title: str,
    points: Sequence[tuple[float, float, str]],
    *,
    across: _Axis,
    up: _Axis,
    stepped: bool = False,
) -> Markup:
    """Draw points, connected by a line.

    Args:
        title: title of the picture.
        points: x, y and description of each point.
        across: horizontal axis.
        up: vertical axis.
        stepped: whether to draw steps between the points, and to number them.
    """
    placed = [(across.place(x), up.place(y), says) for x, y, says in points]
    # A stepped curve shows that no layout exists between two points of the front.
    corner = " L{x:.1f} {before:.1f} L{x:.1f} {y:.1f}" if stepped else " L{x:.1f} {y:.1f}"
    path = f"M{placed[0][0]:.1f} {placed[0][1]:.1f}" + "".join(
        corner.format(x=x, y=y, before=before) for (_, before, _), (x, y, _) in pairwise(placed)
    )
    return _picture(
        title,
        *_ticks(across, up),
        element("path", d=path, class_="curve"),
        # Circles come after the curve, so they receive the mouse first.
        *(
            element("circle", element("title", says), cx=x, cy=y, r=5, fill=_COLOURS[1])
            for x, y, says in placed
        ),
        *(
            element("text", str(number), **_label_side(x, y, above=number % 2 > 0))
            for number, (x, y, _) in enumerate(placed, 1)
            if stepped
        ),
        height=_BOTTOM + 54,
    )


def _label_side(x: float, y: float, *, above: bool) -> dict[str, object]:
    """Return the side of a number, alternating because points may be close."""
    if above:
        return {"x": x + 6, "y": y - 7}
    return {"x": x - 6, "y": y + 17, "text_anchor": "end"}


def _ticks(across: _Axis, up: _Axis) -> Iterator[Markup]:
    """Grid lines with their values, and the units at the ends of the axes."""
    for value in across.ticks:
        x = across.place(value)
        yield element("line", x1=x, y1=up.end, x2=x, y2=up.start, class_="grid")
        label = _label(value)
        yield element("text", label, x=x, y=up.start + 22, text_anchor="middle")
    for value in up.ticks:
        y = up.place(value)
        yield element("line", x1=across.start, y1=y, x2=across.end, y2=y, class_="grid")
        label = _label(value)
        yield element("text", label, x=across.start - 8, y=y + 4, text_anchor="end")
    yield element("text", across.unit, x=across.end, y=up.start + 46, text_anchor="end")
    yield element("text", up.unit, x=4, y=20)


def _share(value: float) -> str:
    # The figure and its unit must stay on one line.
    """Format a share with a non-breaking space."""
    return percent(value).replace(" ", "\N{NO-BREAK SPACE}")


def _label(value: float) -> str:
    return f"{value:.4g}" if value < 1_000 else count(value)


def _picture(title: str, *content: Markup, height: float) -> Markup:
    drawn = element(
        "svg",
        element("title", title),
        joined(*content),
        viewBox=f"0 0 {_WIDTH} {height:g}",
        role="img",
        aria_label=title,
    )
    return element("div", drawn, class_="chart")
