"""On which side of its band a job started, and how far off its p50 was."""

from __future__ import annotations

import pytest

from drumline_scheduler.forecast.accuracy import Calibration, Side, StartForecast, calibration
from drumline_scheduler.forecast.expected_starts import ExpectedStart


@pytest.mark.parametrize(
    ("started_at", "side", "error"),
    [
        (149.0, "early", 1 / 49),
        (150.0, "band", 0.0),
        (200.0, "band", 0.5),
        (201.0, "late", 51 / 101),
    ],
)
def test_sides_and_errors(started_at: float, side: Side, error: float) -> None:
    forecast = StartForecast(
        uid="1", made_at=100.0, expected_at=150.0, latest_at=200.0, started_at=started_at
    )
    assert forecast.side == side
    assert forecast.error_ratio == pytest.approx(error)


@pytest.mark.parametrize("started_at", [120.0, 9_999.0])
@pytest.mark.parametrize("p50_at", [None, 150.0])
def test_no_start_is_early_or_late_where_there_was_no_band(
    p50_at: float | None, started_at: float
) -> None:
    expected = ExpectedStart(key="team/a", uid="1", p50_at=p50_at, p90_at=None)
    forecast = StartForecast.of(expected, made_at=100.0, started_at=started_at)
    assert forecast is not None
    assert forecast.side == "unknown"
    assert (forecast.error_ratio is None) == (p50_at is None)


def test_a_start_that_was_known_says_nothing_of_the_forecast() -> None:
    expected = ExpectedStart(key="team/a", uid="1", p50_at=150.0, p90_at=None)
    assert StartForecast.of(expected, made_at=100.0, started_at=100.0) is None


def made_at_zero(expected: float | None, latest: float | None, started: float) -> StartForecast:
    return StartForecast(
        uid="1", made_at=0.0, expected_at=expected, latest_at=latest, started_at=started
    )


def test_the_calibration_of_many_leaves_those_without_a_band_out_of_its_shares() -> None:
    assert calibration(
        [
            made_at_zero(10, 20, 8),  # off by a quarter
            made_at_zero(10, 20, 20),  # by a half, just within the band
            made_at_zero(10, 20, 20),
            made_at_zero(10, 20, 40),  # by three quarters
            made_at_zero(None, None, 40),
        ]
    ) == Calibration(forecasts=5, without_p90=1, median_error=0.5, by_p50=0.25, by_p90=0.75)


def test_without_forecasts_there_is_no_figure() -> None:
    assert calibration([]) == Calibration(
        forecasts=0, without_p90=0, median_error=None, by_p50=None, by_p90=None
    )
