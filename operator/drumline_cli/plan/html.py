"""A plan as one HTML file: pictures as inline SVG, no scripts, nothing loaded from elsewhere.

Every figure in a picture stands in the text below it too.
"""

from __future__ import annotations

from typing import Final

from drumline_cli.markup import Markup, element
from drumline_cli.plan.model import Plan
from drumline_cli.plan.pictures import curve_picture, front_picture, memory_picture, step_picture
from drumline_cli.plan.text import layouts, plan_text

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = Markup(
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:0;background:Canvas;color:CanvasText}"
    "main{max-width:70rem;margin:0 auto;padding:1.5rem}"
    "h1{font-size:1.35rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}"
    "pre{overflow-x:auto;font:.8rem/1.55 ui-monospace,Consolas,'DejaVu Sans Mono',monospace;"
    "padding:.8rem 1rem;border-radius:8px;"
    "background:color-mix(in srgb,CanvasText 6%,Canvas)}"
    "svg{display:block;width:100%}"
    "svg text{fill:CanvasText;font-size:14px}"
    ".band{height:2.4rem}"
    ".legend{list-style:none;margin:.6rem 0 0;padding:0;display:grid;gap:.1rem 1.5rem;"
    "grid-template-columns:repeat(auto-fill,minmax(17rem,1fr));font-size:.85rem}"
    ".legend li{padding-left:1.2rem;text-indent:-1.2rem}"
    ".legend i{display:inline-block;width:.75rem;height:.75rem;margin-right:.45rem}"
    ".legend .limit{border-left:2px dashed #e45756;width:calc(.75rem - 2px)}"
    ".chart svg{max-width:46rem}"
    "@media(max-width:34rem){main{padding:1rem}.chart svg text{font-size:22px}}"
    ".grid{stroke:CanvasText;stroke-width:1;opacity:.15}"
    ".curve{fill:none;stroke:#4c78a8;stroke-width:2}"
    "line.limit{stroke:#e45756;stroke-width:2;stroke-dasharray:4 3;"
    "vector-effect:non-scaling-stroke}"
)


def page(plan: Plan) -> str:
    """Return the whole document."""
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
        element("h2", "Parts of a step"),
        step_picture(best),
    ]
    if len(plan.front) > 1:
        shown += [
            element("h2", "Memory against time: no other layout is both smaller and faster"),
            front_picture(plan.front),
            element("pre", "\n".join(_numbered(layouts(plan.front)))),
        ]
    points = [(gpus, each) for gpus, each in plan.curve if each is not None]
    if len(points) > 1:
        shown += [
            element("h2", "Speed per GPU by number of GPUs"),
            curve_picture(points),
        ]
    return shown


def _numbered(table: list[str]) -> list[str]:
    """Add to each row the number of its point in the picture. The first row has the headings."""
    first, *rows = table
    width = len(str(len(rows)))
    numbers = (f"{number:>{width}}" for number in range(1, len(rows) + 1))
    return [
        f"{'':{width}}   {first}",
        *(f"{n}   {row}" for n, row in zip(numbers, rows, strict=True)),
    ]
