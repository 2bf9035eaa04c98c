"""On which side of its band a job started, and how far off its p50 was."""

from __future__ import annotations

import pytest

from drumline.scheduling.forecast_accuracy import Side, StartForecast


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
