"""How good forecasts of starts were, once the jobs have started.

Two figures. The error is how far a p50 was off, as a fraction of the wait that remained: its median
says how near. The coverage is the share of starts that were at or before their p90: where forecasts
are honest it is nine in ten, whatever their errors. A forecast without a p90 promised no band: it
counts in neither share, and is counted by itself, as `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from drumline_scheduler.forecast.expected_starts import ExpectedStart

Side = Literal["early", "band", "late", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """A forecast of a waiting job's start, and its actual start. Seconds since the epoch."""

    uid: str
    made_at: float
    expected_at: float | None
    """The p50; None: no such time was in sight."""
    latest_at: float | None
    """The p90; None: no such time was in sight."""
    started_at: float

    @classmethod
    def of(cls, expected: ExpectedStart, *, made_at: float, started_at: float) -> Self | None:
        """None where the start was known when it was made."""
        if started_at <= made_at:
            return None
        return cls(
            uid=expected.uid,
            made_at=made_at,
            expected_at=expected.p50_at,
            latest_at=expected.p90_at,
            started_at=started_at,
        )

    @property
    def error_ratio(self) -> float | None:
        """How far off the p50 was, as a fraction of the wait that remained.

        Raises:
            ZeroDivisionError: It started in the moment of the forecast.
        """
        if self.expected_at is None:
            return None
        return abs(self.expected_at - self.started_at) / (self.started_at - self.made_at)

    @property
    def side(self) -> Side:
        """Before the p50 (half of all, if forecasts are good), up to the p90, or later."""
        if self.expected_at is None or self.latest_at is None:
            return "unknown"
        if self.started_at < self.expected_at:
            return "early"
        return "band" if self.started_at <= self.latest_at else "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Many forecasts together; the field names are those of `drumline simulate -o json`."""

    forecasts: int
    without_p90: int
    """How many of them had no band."""
    median_error: float | None
    """Of those with a p50; None: there were none."""
    by_p50: float | None
    """The share of starts before their p50, of those with a band: a half, if all is well."""
    by_p90: float | None
    """The share of starts at or before their p90, of those with a band: the coverage."""


def calibration(forecasts: Iterable[StartForecast]) -> Calibration:
    """The figures of these forecasts."""
    known = tuple(forecasts)
    errors = sorted(error for each in known if (error := each.error_ratio) is not None)
    sides = [each.side for each in known]
    early, band, late = (sides.count(side) for side in ("early", "band", "late"))
    with_band = early + band + late
    return Calibration(
        forecasts=len(known),
        without_p90=len(known) - with_band,
        median_error=errors[len(errors) // 2] if errors else None,
        by_p50=early / with_band if with_band else None,
        by_p90=(early + band) / with_band if with_band else None,
    )
