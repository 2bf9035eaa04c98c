"""A plan as one HTML file: pictures as inline SVG, no scripts, nothing loaded from elsewhere.

Every figure in a picture stands in the text below it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.cli.formatting import count, duration, percent
from drumline.cli.markup import Markup, element, joined
from drumline.cli.plan.model import Plan
from drumline.cli.plan.text import gib, plan_text
from drumline_trainer.planner.memory import Bill
from drumline_trainer.planner.search import Planned

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_WIDTH: Final = 920
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
    ".axis{stroke:CanvasText;stroke-width:1;opacity:.4}"
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
        shown += [element("h2", "Memory against time"), front_picture(plan.front)]
    points = [(gpus, each) for gpus, each in plan.curve if each is not None]
    if len(points) > 1:
        shown += [element("h2", "Speed by number of GPUs"), curve_picture(points)]
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
    return _scatter(
        "Memory against time",
        [
            (
                each.bill.total / 2**30,
                each.time.seconds,
                (
                    f"{each.layout}, micro-batch {each.setup.micro_batch},"
                    f" recompute {each.setup.recompute}: {gib(each.bill.total)},"
                    f" {duration(each.time.seconds)}"
                ),
            )
            for each in front
        ],
        across="GiB of the fullest rank",
        up="seconds of a step",
    )


def curve_picture(points: Sequence[tuple[int, Planned]]) -> Markup:
    """Tokens per second by number of GPUs."""
    return _scatter(
        "Speed by number of GPUs",
        [
            (
                float(gpus),
                each.time.tokens_per_second,
                (
                    f"{gpus} GPUs, {each.layout}: {count(each.time.tokens_per_second)} tokens/s,"
                    f" MFU {percent(each.time.mfu)}"
                ),
            )
            for gpus, each in points
        ],
        across="GPUs",
        up="tokens per second",
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
        left, top = (number % 3) * (_WIDTH / 3), 62 + 20 * (number // 3)
        pieces.append(element("rect", x=left, y=top - 10, width=11, height=11, fill=colour))
        pieces.append(element("text", f"{name}: {figure}", x=left + 17, y=top))
        x, row = x + width, number // 3
    return _picture(title, *pieces, *marks, height=76 + 20 * row)


def _scatter(
    title: str, points: Sequence[tuple[float, float, str]], *, across: str, up: str
) -> Markup:
    height, left, bottom = 300, 70, 250
    most_x, most_y = max(x for x, _, _ in points), max(y for _, y, _ in points)
    placed = [
        (
            left + x / most_x * (_WIDTH - left - 30),
            bottom - y / most_y * (bottom - 30),
            says,
        )
        for x, y, says in points
    ]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y, _ in placed)
    return _picture(
        title,
        element("line", x1=left, y1=bottom, x2=_WIDTH - 10, y2=bottom, class_="axis"),
        element("line", x1=left, y1=10, x2=left, y2=bottom, class_="axis"),
        element("path", d=path, fill="none", stroke=_COLOURS[0], stroke_width=2),
        *(
            element("circle", element("title", says), cx=x, cy=y, r=5, fill=_COLOURS[1])
            for x, y, says in placed
        ),
        element("text", f"{across}, up to {most_x:.4g}", x=left, y=bottom + 26),
        element("text", f"{up}, up to {most_y:.4g}", x=left + 8, y=22),
        height=height,
    )


def _picture(title: str, *content: Markup, height: float) -> Markup:
    return element(
        "svg",
        element("title", title),
        joined(*content),
        viewBox=f"0 0 {_WIDTH} {height:g}",
        role="img",
        aria_label=title,
    )
