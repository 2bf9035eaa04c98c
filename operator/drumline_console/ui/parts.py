"""What every document is made of: its frame, sections, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from drumline_cli.formatting import clock
from drumline_cli.markup import Markup, element

NOTHING: Final = "-"
_WORDS: Final = frozenset(("why", "next"))
"""Columns with sentences."""


def document(title: str, content: Markup, *, up: str, script: str | None = "live.js") -> str:
    """A whole page.

    Args:
        title: in the browser's tab.
        content: of its body.
        up: leads to the overview.
        script: what runs in it; live.js reads it again every few seconds: not where people type.
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
    main = element("main", content, id="live", aria_busy="false")
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n"


def section(title: str, *content: str) -> Markup:
    """A part of a page below its heading."""
    return element("section", element("h2", title), *content)


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Rows below their heads; on a phone each row is a card."""
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
    """Fields that are sent to an address which changes something."""
    return element("form", *fields, method="post", action=action, class_="fields")


def foot(remarks: Sequence[str], *, as_of: float) -> Markup:
    """What could not be read, and how old the page is."""
    said = (element("p", remark) for remark in remarks)
    return element("footer", *said, element("p", f"As of {clock(as_of)}. All times are UTC."))
