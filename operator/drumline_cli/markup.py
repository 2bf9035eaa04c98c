"""HTML and SVG as values: text is escaped by construction, only `Markup` passes as it is.

There is one way to make Markup from foreign text, `element`, and it escapes every attribute and
every piece of content that is not Markup itself.
"""

from __future__ import annotations

import html
from typing import Final

_VOID: Final = frozenset({"meta", "link", "br", "hr", "img", "input"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: object) -> Markup:
    """Return an element with its content escaped.

    Args:
        name: tag of the element.
        content: text and markup. Text is escaped.
        attributes: attributes by name, with `_` for `-` and `class_` for `class`. None omits one.
    """
    # Every attribute is escaped, even those that seem safe.
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    # These elements have no content and no end tag.
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(*content)}</{name}>")


def joined(*content: str) -> Markup:
    """Join pieces. Escape those that are not Markup."""
    return Markup(
        "".join(piece if isinstance(piece, Markup) else html.escape(piece) for piece in content)
    )


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
