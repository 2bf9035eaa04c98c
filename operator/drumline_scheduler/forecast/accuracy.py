"""Measure how good forecasts of starts were, once the jobs have started.

There are two figures. The error is the distance of a p50 from the start, as a fraction of the wait
that remained. Its median shows how near forecasts are. The coverage is the share of starts at or
before their p90. For honest forecasts it is nine in ten, whatever their errors. A forecast without
a p90 promised no band. It counts in neither share, and is counted separately as `unknown`.
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
    """The p50. None: no such time was in sight."""
    latest_at: float | None
    """The p90. None: no such time was in sight."""
    started_at: float

    @classmethod
    def of(cls, expected: ExpectedStart, *, made_at: float, started_at: float) -> Self | None:
        """Return a forecast with its outcome; None if the start was known when it was made.

        Args:
            expected: the forecast.
            made_at: Unix time of the forecast.
            started_at: Unix time of the actual start.
        """
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
        """Distance of the p50 from the start, as a fraction of the wait that remained.

        None without a p50.

        Raises:
            ZeroDivisionError: the job started at the time of the forecast.
        """
        if self.expected_at is None:
            return None
        return abs(self.expected_at - self.started_at) / (self.started_at - self.made_at)

    @property
    def side(self) -> Side:
        """Position of the start: before the p50, up to the p90, or later.

        Good forecasts have half of all starts before the p50.
        """
        if self.expected_at is None or self.latest_at is None:
            return "unknown"
        if self.started_at < self.expected_at:
            return "early"
        return "band" if self.started_at <= self.latest_at else "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Figures of many forecasts. The field names are those of `drumline simulate -o json`."""

    forecasts: int
    without_p90: int
    """Number of forecasts without a band."""
    median_error: float | None
    """Median error of the forecasts with a p50. None if there are none."""
    by_p50: float | None
    """Share of starts before their p50, of forecasts with a band. One half is ideal."""
    by_p90: float | None
    """Share of starts at or before their p90, of forecasts with a band: the coverage."""


def calibration(forecasts: Iterable[StartForecast]) -> Calibration:
    """Return the figures of these forecasts."""
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
