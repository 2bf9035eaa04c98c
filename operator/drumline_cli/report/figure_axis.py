"""A linear scale for figures, such as steps or losses: where one is drawn, and round marks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureAxis:
    """Figures from `low` to `high`, drawn from `at_low` to `at_high`, which may be above it."""

    low: float
    high: float
    at_low: float
    at_high: float

    def __call__(self, figure: float) -> float:
        """Return the position of a figure, within the picture."""
        part = (figure - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.at_low + min(max(part, 0.0), 1.0) * (self.at_high - self.at_low)

    def marks(self, most: int) -> list[float]:
        """Return round figures on the axis, about `most` of them."""
        step = _round_step((self.high - self.low) / most)
        if step is None:
            return [self.low]
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


def spanning(
    figures: Iterable[float], *, at_low: float, at_high: float, from_zero: bool = False
) -> FigureAxis:
    """Return the axis on which all these figures lie. At least one is given.

    Args:
        figures: values on the axis.
        at_low: coordinate of the lowest value.
        at_high: coordinate of the highest value.
        from_zero: whether the axis begins at 0.
    """
    figures = list(figures)
    low = min(figures)
    return FigureAxis(
        low=min(0.0, low) if from_zero else low,
        high=max(figures),
        at_low=at_low,
        at_high=at_high,
    )


def _round_step(least: float) -> float | None:
    """Return the smallest of 1, 2 or 5 times a power of ten that is not below the value."""
    if least <= 0 or not math.isfinite(least):
        return None
    power = 10.0 ** math.floor(math.log10(least))
    if power == 0:  # of the smallest figures there are
        return None
    return next((power * times for times in (1, 2, 5) if power * times >= least), power * 10)
