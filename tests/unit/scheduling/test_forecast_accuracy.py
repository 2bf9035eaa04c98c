"""On which side of its band a job started, and how far off its p50 was."""

from __future__ import annotations

import pytest

from drumline.scheduling.forecast import ExpectedStart
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


def test_no_start_is_late_where_no_latest_time_was_in_sight() -> None:
    expected = ExpectedStart(key="team/a", uid="1", p50_at=150.0, p90_at=None)
    forecast = StartForecast.of(expected, made_at=100.0, started_at=9_999.0)
    assert forecast is not None
    assert forecast.side == "band"


@pytest.mark.parametrize(("p50_at", "started_at"), [(None, 150.0), (150.0, 100.0)])
def test_what_cannot_be_compared(p50_at: float | None, started_at: float) -> None:
    expected = ExpectedStart(key="team/a", uid="1", p50_at=p50_at, p90_at=None)
    assert StartForecast.of(expected, made_at=100.0, started_at=started_at) is None
