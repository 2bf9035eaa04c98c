"""Build the parts of every page: frame, sections, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from drumline_cli.formatting import clock
from drumline_cli.markup import Markup, element

NOTHING: Final = "-"
_WORDS: Final = frozenset(("why", "next"))
"""Columns that contain sentences."""


def document(
    title: str,
    content: Markup,
    *,
    up: str,
    script: str | None = "live.js",
    look: str | None = None,
) -> str:
    """Return a whole page.

    Args:
        title: title of the browser's tab.
        content: content of the body.
        up: path to the overview.
        script: script of the page. live.js reloads it every few seconds, so pages with forms do not
            use it.
        look: CSS class of the page.
    """
    assets = [
        element("link", rel="stylesheet", href=f"{up}asset/report.css"),
        element("link", rel="stylesheet", href=f"{up}asset/ui.css"),
    ]
    if script is not None:
        assets.append(element("script", src=f"{up}asset/{script}", type="module"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        *assets,
    )
    main = element("main", content, id="live", aria_busy="false", class_=look)
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n"


def section(title: str, *content: str, pane: bool = False) -> Markup:
    """Return a part of a page below its heading.

    Args:
        title: heading, and the name in links to the part.
        content: what is below it.
        pane: whether content that is taller than a part of the screen scrolls by itself.
    """
    if pane:
        box = element("div", *content, class_="pane", tabindex="0", role="group", aria_label=title)
        content = (box,)
    return element("section", element("h2", title), *content, id=anchor(title))


def anchor(title: str) -> str:
    """Return the id of the part with this heading: `over-time`."""
    return title.lower().replace(" ", "-")


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return rows below their headers. On a phone, each row is a card.

    Args:
        title: title of the table.
        heads: texts of the headers.
        rows: cells of each row, as markup.
    """
    first = element("tr", *(element("th", name, scope="col") for name in heads))
    body = (
        element(
            "tr",
            *(
                element("td", cell, data_head=head, class_="words" if head in _WORDS else None)
                for head, cell in zip(heads, row, strict=True)
            ),
        )
        for row in rows
    )
    whole = element("table", element("thead", first), element("tbody", *body), aria_label=title)
    return element("div", whole, class_="wide", tabindex="0", role="group", aria_label=title)


def post_form(action: str, *fields: Markup) -> Markup:
    """Return a form that posts fields to an address."""
    return element("form", *fields, method="post", action=action, class_="fields")


def foot(remarks: Sequence[str], *, as_of: float) -> Markup:
    """Return the age of the page, and remarks about objects that could not be read."""
    said = (element("p", remark) for remark in remarks)
    return element("footer", *said, element("p", f"As of {clock(as_of)}. All times are UTC."))
