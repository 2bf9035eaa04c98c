"""Counted nouns in messages: `1 member`, `2 members`."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return `count` and the noun, in the plural unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
