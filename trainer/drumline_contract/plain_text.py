"""Text from untrusted writers, made safe at the point of entry.

A program's output ends in status, events, logs and terminals. A terminal obeys control characters.
Direction marks make a reader see other words than are there (Trojan Source, Boucher and Anderson
2021). Both are replaced here.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_UNSAFE: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
"""Unicode categories that steer a terminal or a reader's eye instead of being read."""


def plain(text: str) -> str:
    """Turn foreign text into one line that no terminal obeys.

    Control and direction characters become spaces, runs of spaces become one. O(characters), at the
    speed of C where there is nothing to do.
    """
    if text.isprintable():  # none of those categories, and no space but the plain one
        return text if "  " not in text and text == text.strip() else " ".join(text.split())
    kept = (" " if unicodedata.category(char) in _UNSAFE else char for char in text)
    return " ".join("".join(kept).split())


def plain_lines(text: str) -> str:
    """Replace unsafe characters but keep line breaks, so that a traceback stays readable."""
    if text.isprintable():
        return text
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in _UNSAFE else " " for char in text
    )
