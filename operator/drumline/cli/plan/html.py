"""A plan as one HTML file: pictures as inline SVG, no scripts, nothing loaded from elsewhere.

Every figure in a picture stands in the text below it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from drumline.cli.formatting import count, duration, percent
from drumline.cli.markup import Markup, element, joined
from drumline.cli.plan.columns import gib
from drumline.cli.plan.model import Plan
from drumline.cli.plan.text import layouts, plan_text
from drumline_trainer.planner.auto import recompute_words
from drumline_trainer.planner.memory import Bill
from drumline_trainer.planner.search import Planned

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_WIDTH: Final = 920
_LEFT: Final = 90
_BOTTOM: Final = 250
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
_STYLE: Final = Markup(
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:0;background:Canvas;color:CanvasText}"
    "main{max-width:62rem;margin:0 auto;padding:1.5rem}"
    "h1{font-size:1.35rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}"
    "pre{overflow-x:auto;font-size:.8rem;line-height:1.55;padding:.8rem 1rem;border-radius:8px;"
    "background:color-mix(in srgb,CanvasText 6%,Canvas)}"
    "svg{display:block;width:100%;height:auto}"
    "svg text{fill:CanvasText;font-size:12px}"
    ".grid{stroke:CanvasText;stroke-width:1;opacity:.15}"
    ".curve{fill:none;stroke:#4c78a8;stroke-width:2}"
    ".limit{stroke:#e45756;stroke-width:2;stroke-dasharray:4 3}"
)


def page(plan: Plan) -> str:
    """The whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", plan.request.title),
        element("style", _STYLE),
    )
    body = element(
        "main",
        element("h1", plan.request.title),
        *_pictures(plan),
        element("h2", "In words"),
        element("pre", plan_text(plan)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _pictures(plan: Plan) -> list[Markup]:
    if not plan.result.planned:
        return []
    best = plan.result.planned[0]
    shown = [
        element("h2", f"Memory of the fullest rank: {best.layout}"),
        memory_picture(best.bill),
        element("h2", "Where a step goes"),
        step_picture(best),
    ]
    if len(plan.front) > 1:
        shown += [
            element("h2", "Memory against time: none is both slower and larger than another"),
            front_picture(plan.front),
            element("pre", "\n".join(layouts(plan.front))),
        ]
    points = [(gpus, each) for gpus, each in plan.curve if each is not None]
    if len(points) > 1:
        shown += [
            element("h2", "Speed of a GPU by number of GPUs"),
            curve_picture(points),
        ]
    return shown


def memory_picture(bill: Bill) -> Markup:
    """The lines of a bill as one band, with the device's limit."""
    scale = (_WIDTH - 20) / max(bill.total, bill.capacity)
    entries = [(line.name, line.size * scale, gib(line.size)) for line in bill.lines]
    limit = bill.capacity * scale
    mark = element("line", x1=limit, y1=0, x2=limit, y2=44, class_="limit")
    return _band("Memory by line", entries, mark)


def step_picture(planned: Planned) -> Markup:
    """The parts of a step as one band."""
    time = planned.time
    scale = (_WIDTH - 20) / time.seconds
    ordered = sorted(time.parts.items(), key=lambda entry: -entry[1])
    return _band(
        "Parts of a step",
        [
            (str(part), seconds * scale, f"{duration(seconds)}, {percent(seconds / time.seconds)}")
            for part, seconds in ordered
            if seconds > 0
        ],
    )


def front_picture(front: Sequence[Planned]) -> Markup:
    """Layouts of which none is both slower and larger than another."""
    sizes = [each.bill.total / 2**30 for each in front]
    times = [each.time.seconds for each in front]
    return _scatter(
        "Memory against time",
        [
            (
                size,
                each.time.seconds,
                (
                    f"{each.layout}, micro-batch {each.setup.micro_batch},"
                    f" recompute {recompute_words(each)}: {gib(each.bill.total)},"
                    f" {duration(each.time.seconds)}"
                ),
            )
            for size, each in zip(sizes, front, strict=True)
        ],
        across=_linear(sizes, unit="GiB of the fullest rank", start=_LEFT, end=_WIDTH - 30),
        up=_linear(times, unit="seconds of a step", start=_BOTTOM, end=30),
    )


def curve_picture(points: Sequence[tuple[int, Planned]]) -> Markup:
    """What each GPU does, by number of GPUs in steps of doubling: level where more GPUs pay."""
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
        up=_linear([0.0, *speeds], unit="tokens/s of a GPU", start=_BOTTOM, end=30),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Values on a line of the picture."""

    unit: str
    low: float
    high: float
    start: float
    """Where `low` is; so `end` of `high`."""
    end: float
    ticks: tuple[float, ...]
    logarithmic: bool

    def place(self, value: float) -> float:
        """Where a value is."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def _linear(values: Sequence[float], *, unit: str, start: float, end: float) -> _Axis:
    """From a round number below the least to one above the largest, with about five ticks."""
    least, most = min(values), max(values)
    spread = max(most - least, 0.05 * most)
    step = next(
        power * each
        for power in (10.0 ** math.floor(math.log10(spread / 5)) * 10**k for k in range(3))
        for each in (1, 2, 5)
        if spread / (power * each) <= 5
    )
    first, last = math.floor(least / step), math.ceil(most / step)
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
    """From the least to the largest, a tick at each doubling of the least, eight at most."""
    least, most = min(values), max(*values, 2 * min(values))
    doublings = math.log2(most / least)
    stride = max(1, math.ceil(doublings / 8))
    ticks = tuple(
        least * 2**number for number in range(0, math.floor(doublings + 0.01) + 1, stride)
    )
    return _Axis(
        unit=unit, low=least, high=most, start=start, end=end, ticks=ticks, logarithmic=True
    )


def _band(title: str, entries: Sequence[tuple[str, float, str]], *marks: Markup) -> Markup:
    pieces: list[Markup] = []
    x, row = 0.0, 0
    for number, (name, width, figure) in enumerate(entries):
        colour = _COLOURS[number % len(_COLOURS)]
        says = element("title", f"{name}: {figure}")
        pieces.append(
            element("rect", says, x=x, y=4, width=max(width, 0.5), height=34, fill=colour)
        )
        left, top = (number % 2) * (_WIDTH / 2), 62 + 20 * (number // 2)
        pieces.append(element("rect", x=left, y=top - 10, width=11, height=11, fill=colour))
        pieces.append(element("text", f"{name}: {figure}", x=left + 17, y=top))
        x, row = x + width, number // 2
    return _picture(title, *pieces, *marks, height=76 + 20 * row)


def _scatter(
    title: str,
    points: Sequence[tuple[float, float, str]],
    *,
    across: _Axis,
    up: _Axis,
) -> Markup:
    placed = [(across.place(x), up.place(y), says) for x, y, says in points]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y, _ in placed)
    return _picture(
        title,
        *_ticks(across, up),
        element("path", d=path, class_="curve"),
        *(
            element("circle", element("title", says), cx=x, cy=y, r=5, fill=_COLOURS[1])
            for x, y, says in placed
        ),
        height=_BOTTOM + 50,
    )


def _ticks(across: _Axis, up: _Axis) -> Iterator[Markup]:
    """Grid lines with their values, and the units at the ends of the axes."""
    for value in across.ticks:
        x = across.place(value)
        yield element("line", x1=x, y1=up.end, x2=x, y2=up.start, class_="grid")
        label = f"{value:,.4g}" if value < 10_000 else count(value)
        yield element("text", label, x=x, y=up.start + 18, text_anchor="middle")
    for value in up.ticks:
        y = up.place(value)
        yield element("line", x1=across.start, y1=y, x2=across.end, y2=y, class_="grid")
        label = f"{value:.4g}" if value < 10_000 else count(value)
        yield element("text", label, x=across.start - 8, y=y + 4, text_anchor="end")
    yield element("text", across.unit, x=across.end, y=up.start + 38, text_anchor="end")
    yield element("text", up.unit, x=4, y=14)


def _picture(title: str, *content: Markup, height: float) -> Markup:
    return element(
        "svg",
        element("title", title),
        joined(*content),
        viewBox=f"0 0 {_WIDTH} {height:g}",
        role="img",
        aria_label=title,
    )
