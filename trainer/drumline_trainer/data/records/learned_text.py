"""A text of which a part is learned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LearnedText:
    """What is made of a record."""

    text: str
    learned: tuple[tuple[int, int], ...] | None = None
    """Start and stop of what is learned, in characters; None: all of it is."""
