"""What reclaims cost, as far back as it counts."""

from __future__ import annotations

from drumline_scheduler.disruption.interruptions import (
    MAX_PERCENT,
    WINDOW_DAYS,
    PoolUse,
    recent,
    with_use,
)

HOUR = 3600
HELD = PoolUse(gpu_seconds=1000 * HOUR)
TEN = PoolUse(reclaimed_nodes=10, lost_gpu_seconds=10 * 64 * 60)


def test_ten_reclaims_under_gangs_of_64_in_1000_gpu_hours_cost_one_percent() -> None:
    assert (HELD + TEN).lost_percent == 1
    assert HELD.lost_percent == 0


def test_a_pool_that_is_hardly_used_is_not_judged_without_bounds() -> None:
    assert PoolUse().lost_percent == 0
    assert TEN.lost_percent == 0
    assert (TEN + PoolUse(gpu_seconds=1)).lost_percent == MAX_PERCENT


def test_days_are_added_up_and_forgotten_one_by_one() -> None:
    history = with_use({}, HELD, day=100)
    history = with_use(history, TEN, day=100)
    history = with_use(history, HELD, day=100 + WINDOW_DAYS - 1)
    assert recent(history, day=100 + WINDOW_DAYS - 1) == HELD + HELD + TEN
    assert recent(history, day=100 + WINDOW_DAYS) == HELD
    assert with_use(history, HELD, day=100 + WINDOW_DAYS).keys() == {129, 130}


def test_a_day_that_a_clock_ahead_wrote_is_forgotten() -> None:
    history = with_use({}, TEN, day=200)
    assert with_use(history, HELD, day=100).keys() == {100}
