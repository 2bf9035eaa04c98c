"""Build cards with inline styles only: no script, no external content, readable in dark and light.

Text inherits the notebook's color, and lines and backgrounds are translucent. All foreign text goes
through `element`, which escapes it. No foreign text becomes part of a style.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from drumline_cli.formatting import clock, many, percent
from drumline_cli.markup import Markup, element, joined

MOST_ROWS: Final = 200
"""Maximum number of rows in a table. `rows()` returns all of them."""
_LINE: Final = "1px solid rgba(128,128,128,.35)"
_CARD: Final = (
    f"border:{_LINE};border-radius:6px;padding:.6em .9em;margin:.3em 0;max-width:72em;"
    "color:inherit;background:transparent;font-size:.95em;overflow-x:auto"
)
_SOFT: Final = "opacity:.7;margin:.4em 0 0;font-size:.9em"
_CELL: Final = f"text-align:left;vertical-align:top;padding:.2em .8em .2em 0;border-top:{_LINE}"
_HEAD: Final = "text-align:left;padding:.2em .8em .2em 0;font-weight:600;opacity:.7"
_PILL: Final = "border-radius:1em;padding:.05em .6em;font-size:.85em;background:"
_GREEN, _AMBER, _BLUE, _RED, _GREY = (
    f"rgba({colour},.25)"
    for colour in ("46,160,67", "210,153,34", "56,139,253", "248,81,73", "128,128,128")
)
_GROUNDS: Final = {
    "Running": _GREEN,
    "Succeeded": _GREEN,
    "Pending": _AMBER,
    "Starting": _BLUE,
    "Recovering": _BLUE,
    "Failed": _RED,
}
_LOG: Final = (
    "max-height:32em;overflow:auto;margin:0;white-space:pre-wrap;font-size:.85em;"
    "color:inherit;background:transparent"
)


def card(*content: str, as_of: float, remarks: Sequence[str] = ()) -> Markup:
    """Return the whole card: its parts, remarks and age.

    Args:
        *content: parts of the card.
        as_of: Unix time at which the data was read.
        remarks: remarks about the cluster.
    """
    below = [element("p", remark, style=_SOFT) for remark in remarks]
    age = element("p", f"As of {clock(as_of)}", style=_SOFT)
    return element("div", *(part for part in content if part), *below, age, style=_CARD)


def title(name: str, phase: str = "", reason: str = "") -> Markup:
    """Return name, state and reason.

    Args:
        name: name of the job.
        phase: phase of the job.
        reason: reason of the job.
    """
    parts = [element("strong", name)]
    if phase:
        parts += [" ", pill(phase)]
    if reason:
        parts += [" ", reason]
    return element("div", *parts, style="margin-bottom:.3em")


def pill(phase: str) -> Markup:
    """Return one word on a background color that shows its state."""
    return element("span", phase, style=_PILL + _GROUNDS.get(phase, _GREY))


def sentence(text: str) -> Markup:
    """Return a paragraph, or nothing for empty text."""
    return element("p", text, style="margin:.3em 0") if text else Markup("")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return names and values, without empty values."""
    lines = [
        element("div", element("span", f"{name}: ", style="opacity:.7"), value)
        for name, value in pairs
        if value
    ]
    return element("div", *lines, style="margin:.3em 0") if lines else Markup("")


def bar(share: float) -> Markup:
    """Return a progress bar for a share between 0 and 1."""
    label = f"{percent(share)} of its steps are done"
    within = f"width:{min(max(share, 0.0), 1.0) * 100:.1f}%;height:100%;background:{_GREEN}"
    whole = "height:.5em;border-radius:3px;background:rgba(128,128,128,.2);margin:.3em 0"
    return element("div", element("div", style=within), style=whole, role="img", aria_label=label)


def bullets(head: str, lines: Sequence[str]) -> Markup:
    """Return sentences below a heading, or nothing."""
    if not lines:
        return Markup("")
    style = "margin:.1em 0 .3em 1.2em;padding:0"
    return joined(
        sentence(head), element("ul", *(element("li", each) for each in lines), style=style)
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return at most `MOST_ROWS` rows below their headers, or nothing."""
    if not rows:
        return Markup("")
    first = element("tr", *(element("th", name, style=_HEAD) for name in heads))
    body = [
        element("tr", *(element("td", cell, style=_CELL) for cell in row))
        for row in rows[:MOST_ROWS]
    ]
    whole = element(
        "table",
        element("thead", first),
        element("tbody", *body),
        style="border-collapse:collapse;color:inherit;background:transparent;margin:.3em 0",
    )
    left = len(rows) - MOST_ROWS
    more = element("p", f"{many(left, 'row')} more: see rows()", style=_SOFT) if left > 0 else ""
    return joined(whole, more)


def log(lines: Iterable[str]) -> Markup:
    """Return log lines in a box that scrolls."""
    return element("pre", "\n".join(lines), style=_LOG)
