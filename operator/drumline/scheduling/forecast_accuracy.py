"""How good a forecast of a start was, once the job has started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["early", "band", "late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """A forecast of a waiting job's start, and its actual start. Seconds since the epoch."""

    uid: str
    made_at: float
    expected_at: float
    """The p50."""
    latest_at: float
    """The p90."""
    started_at: float

    @property
    def error_ratio(self) -> float:
        """How far off the p50 was, as a fraction of the wait that remained.

        Raises:
            ZeroDivisionError: It started in the moment of the forecast.
        """
        return abs(self.expected_at - self.started_at) / (self.started_at - self.made_at)

    @property
    def side(self) -> Side:
        """Before the p50 (half of all, if forecasts are good), up to the p90, or later."""
        if self.started_at < self.expected_at:
            return "early"
        return "band" if self.started_at <= self.latest_at else "late"
