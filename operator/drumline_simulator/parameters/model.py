"""Define a figure, its meaning and its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source of a figure."""

    text: str
    """Description of the source."""
    url: str = ""
    """URL of the publication, or a page beside docs/simulated-week.md. Empty for an assumption."""
    row: str = ""
    """Line of that page with the figure, if it was measured here. A test looks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure with its source."""

    value: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A figure that all sides share."""

    means: str
    unit: str
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A figure that differs by side."""

    means: str
    unit: str
    ours: Figure
    peer: Figure
    """Value as published, or as measured here."""
    best: Figure
    """Best published value, or Drumline's value."""
