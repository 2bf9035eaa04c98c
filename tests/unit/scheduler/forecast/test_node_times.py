"""When nodes come, by how long the last ones of the pool took."""

from __future__ import annotations

from drumline_scheduler.forecast.node_times import MOST, NodeTimes


def times(*seconds: float) -> NodeTimes:
    known = NodeTimes()
    for each in seconds:
        known = known.with_time("gpus", each)
    return known


def test_half_come_before_the_middle_time_and_nearly_all_before_the_late_ones() -> None:
    known = times(*(60.0 + 10.0 * number for number in range(11)))
    assert known.start("gpus", asked_at=1000.0, now=1000.0) == (1110.0, 1150.0)


def test_times_that_have_passed_do_not_count() -> None:
    known = times(60.0, 90.0, 300.0)
    assert known.start("gpus", asked_at=1000.0, now=1100.0) == (1300.0, 1300.0)
    assert known.start("gpus", asked_at=1000.0, now=1301.0) is None


def test_of_few_times_and_of_another_pool_nothing_is_said() -> None:
    known = times(60.0, 90.0)
    assert known.start("gpus", asked_at=0.0, now=0.0) is None
    assert known.with_time("gpus", 70.0).start("other", asked_at=0.0, now=0.0) is None


def test_the_newest_count() -> None:
    known = times(*([5.0] * 50), *([200.0] * MOST))
    assert known.start("gpus", asked_at=0.0, now=0.0) == (200.0, 200.0)
