"""A figure, what it means, and where it is from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a figure is from."""

    text: str
    """In words."""
    url: str = ""
    """Of what was published, or a page beside docs/simulated-week.md; '' for an assumption."""
    row: str = ""
    """A line of that page that has the figure, where it was measured here: a test looks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure with its source."""

    value: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is the same for all sides."""

    means: str
    unit: str
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What each side has of its own."""

    means: str
    unit: str
    ours: Figure
    peer: Figure
    """As published, or as measured here."""
    best: Figure
    """The best that anybody published for it, or what ours has."""
