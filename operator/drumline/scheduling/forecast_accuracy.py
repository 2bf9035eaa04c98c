"""How good a forecast of a start was, once the job has started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from drumline.scheduling.forecast import ExpectedStart

Side = Literal["early", "band", "late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """A forecast of a waiting job's start, and its actual start. Seconds since the epoch."""

    uid: str
    made_at: float
    expected_at: float
    """The p50."""
    latest_at: float | None
    """The p90; None: no such time was in sight, and no start is later than that."""
    started_at: float

    @classmethod
    def of(cls, expected: ExpectedStart, *, made_at: float, started_at: float) -> Self | None:
        """None where nothing was expected, or the start was known when it was made."""
        if expected.p50_at is None or started_at <= made_at:
            return None
        return cls(
            uid=expected.uid,
            made_at=made_at,
            expected_at=expected.p50_at,
            latest_at=expected.p90_at,
            started_at=started_at,
        )

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
        if self.latest_at is None or self.started_at <= self.latest_at:
            return "band"
        return "late"
