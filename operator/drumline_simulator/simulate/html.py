"""Render a comparison as one HTML file without scripts or external content."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from drumline_cli.markup import Markup, element, joined

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE: Final = Markup(
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:0;background:Canvas;color:CanvasText}"
    "main{max-width:62rem;margin:0 auto;padding:1.5rem}"
    "h1{font-size:1.35rem}"
    "pre{overflow-x:auto;font-size:.82rem;line-height:1.6;padding:.8rem 1rem;border-radius:8px;"
    "background:color-mix(in srgb,CanvasText 6%,Canvas)}"
    "figure{margin:1.2rem 0;padding:.6rem;background:#fff;border-radius:8px;"
    "box-shadow:0 0 0 1px #8884}"
    "img{display:block;width:100%;height:auto}"
)


def page(title: str, *, table: str, pictures: Sequence[tuple[str, str]]) -> str:
    """Return the whole document.

    Args:
        title: title of the page.
        table: comparison as text.
        pictures: title and SVG of each picture.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", _STYLE),
    )
    shown = joined(*(_picture(alt, svg) for alt, svg in pictures))
    body = element("main", element("h1", title), element("pre", table), shown)
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _picture(alt: str, svg: str) -> Markup:
    source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    return element("figure", element("img", alt=alt, src=source))
