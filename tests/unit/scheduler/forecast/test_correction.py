"""Forecasts are moved by what became of earlier ones."""

from __future__ import annotations

from random import Random

import pytest

from drumline_scheduler.forecast.correction import (
    ALLOWANCE_SECONDS,
    ForecastLearner,
    GroupedStart,
    grouped,
)
from drumline_scheduler.forecast.expected_starts import FARTHEST_SECONDS, ExpectedStart
from tests.unit.scheduler.builders import gang

HOUR = 3600.0


def said(
    uid: str = "1", *, at: float | None, by: float | None = None, group: str = "q"
) -> GroupedStart:
    start = ExpectedStart(key=f"team/{uid}", uid=uid, p50_at=at, p90_at=by)
    return GroupedStart(start=start, group=group)


def with_outcomes(*ratios: float, group: str = "q") -> ForecastLearner:
    """Each job was said to wait an hour; the ratio says how long it did."""
    learner = ForecastLearner()
    for number, ratio in enumerate(ratios):
        learner.note([said(str(number), at=HOUR, group=group)], now=0.0)
        padded = ratio * (HOUR + ALLOWANCE_SECONDS)
        learner.started(str(number), at=padded - ALLOWANCE_SECONDS)
    return learner


def waits(learner: ForecastLearner, forecast: GroupedStart, *, now: float) -> tuple[float, float]:
    start = learner.correction(now).of(forecast, now=now)
    assert start.p50_at is not None
    assert start.p90_at is not None
    return start.p50_at - now, start.p90_at - now


def test_before_anything_is_known_the_median_stands_and_the_band_is_wide() -> None:
    p50, p90 = waits(ForecastLearner(), said(at=HOUR), now=0.0)
    assert p50 == HOUR
    assert p90 > 2 * HOUR


def test_of_many_outcomes_median_and_nine_in_ten_count() -> None:
    learner = with_outcomes(*(1.0 + tenth / 100 for tenth in range(300)))  # 1 to 4
    p50, p90 = waits(learner, said(at=10 * HOUR), now=0.0)
    assert p50 == pytest.approx(25 * HOUR, rel=0.02)
    assert p90 == pytest.approx(37 * HOUR, rel=0.02)


def test_one_outcome_moves_little() -> None:
    p50, _ = waits(with_outcomes(100.0), said(at=HOUR), now=0.0)
    assert p50 < 3 * HOUR


def test_a_group_has_its_own_delays_and_a_new_one_those_of_all() -> None:
    learner = with_outcomes(*[3.0] * 50)
    for number in range(50):
        learner.note([said(f"b{number}", at=HOUR, group="prompt")], now=0.0)
        learner.started(f"b{number}", at=HOUR)
    own, _ = waits(learner, said(at=10 * HOUR, group="prompt"), now=0.0)
    other, _ = waits(learner, said(at=10 * HOUR), now=0.0)
    new, most = waits(learner, said(at=10 * HOUR, group="new"), now=0.0)
    assert own == pytest.approx(10 * HOUR, rel=0.05)
    assert other == pytest.approx(30 * HOUR, rel=0.05)
    assert own <= new <= other < most + 1.0


def test_a_p90_that_was_far_for_a_reason_stays_far() -> None:
    learner = with_outcomes(*[1.0] * 200)
    _, near = waits(learner, said(at=HOUR, by=1.1 * HOUR), now=0.0)
    _, far = waits(learner, said(at=HOUR, by=13 * HOUR), now=0.0)
    assert near < 1.2 * HOUR
    assert far == 13 * HOUR


@pytest.mark.parametrize("far", [HOUR, 1e12])
def test_no_start_is_so_far_that_it_has_no_date(far: float) -> None:
    """Late by a million times, or behind a job with an endless limit."""
    learner = with_outcomes(*[1e6] * 200)
    waited = waits(learner, said(at=far, by=2 * far), now=HOUR / 2)
    assert waited == (FARTHEST_SECONDS, FARTHEST_SECONDS)


def test_who_waits_longer_than_was_said_counts_before_it_starts() -> None:
    learner = ForecastLearner()
    learner.note([said(str(number), at=HOUR) for number in range(50)], now=0.0)
    punctual, _ = waits(learner, said(at=11 * HOUR), now=HOUR)
    late, _ = waits(learner, said(at=15 * HOUR), now=5 * HOUR)
    assert punctual == 10 * HOUR
    assert late == pytest.approx(50 * HOUR, rel=0.05)


def test_one_who_left_teaches_nothing() -> None:
    learner = ForecastLearner()
    learner.note([said(at=HOUR)], now=0.0)
    assert list(learner.waiting) == ["1"]
    learner.left("1")
    assert not learner.waiting
    assert learner.correction(99 * HOUR) == ForecastLearner().correction(0.0)


class Counted(float):
    """A number whose comparisons are counted, as are those of what is computed from it."""

    comparisons = 0

    def __add__(self, other: float) -> Counted:
        return Counted(float(self) + other)

    def __sub__(self, other: float) -> Counted:
        return Counted(float(self) - other)

    def __truediv__(self, other: float) -> Counted:
        return Counted(float(self) / other)

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return float(self) < float(other)


def test_many_groups_cost_little_more_than_one() -> None:
    """The leader's loop waits meanwhile; sorted anew for each group they took five million."""
    groups, each = 100, 50
    learner = ForecastLearner()
    chance = Random(0)
    for number in range(groups * each):
        learner.note([said(str(number), at=HOUR, group=f"q{number % groups}")], now=0.0)
        learner.started(str(number), at=Counted(HOUR * chance.lognormvariate(0.0, 1.0)))
    Counted.comparisons = 0
    assert len(learner.correction(HOUR).groups) == groups
    assert 0 < Counted.comparisons < 1_000_000


def test_a_simulated_future_without_a_start_gives_way_to_the_rough_one() -> None:
    seen, unseen = said("1", at=HOUR).start, said("2", at=None).start
    rough = said("2", at=9 * HOUR).start
    waiting = {"1": gang("a", queue="q"), "2": gang("b", queue="q")}
    assert grouped(simulated=[seen, unseen], rough=[rough], waiting=waiting) == [
        GroupedStart(start=seen, group="q"),
        GroupedStart(start=rough, group="q/rough"),
    ]
