from __future__ import annotations

import pytest

from drumline_trainer.recovery.snapshot_interval import MAX_COST, SnapshotInterval


def settled(pace: SnapshotInterval, *, cost: float, copy: float) -> int:
    """The interval after as many snapshots as it takes, one rank deciding for all."""
    for _ in range(20):
        wish = pace.propose(cost_seconds=cost, copy_seconds=copy)
        pace.adopt(wish, at=pace.next_step)
    return pace.every_steps


@pytest.mark.parametrize(
    ("step", "cost", "copy", "every"),
    [
        pytest.param(1.0, 0.001, 0.1, 1, id="nearly free"),
        pytest.param(0.010, 0.003, 0.0, 10, id="3 ms may cost 3 % of 10 steps of 10 ms"),
        pytest.param(0.010, 0.0001, 0.075, 8, id="a copy takes 7.5 steps"),
        pytest.param(2.0, 0.5, 100.0, 50, id="the copy is the slower of the two"),
    ],
)
def test_costs_its_share_and_waits_for_the_copy(
    step: float, cost: float, copy: float, every: int
) -> None:
    pace = SnapshotInterval()
    pace.begin(0)
    for number in range(30):
        pace.measure_step(step, to=number + 1)
    assert settled(pace, cost=cost, copy=copy) == every
    assert cost <= MAX_COST * every * step + 1e-12


def test_steps_between_two_meetings_are_measured_together() -> None:
    pace = SnapshotInterval()
    pace.begin(40)
    pace.every_steps = 1000
    for seconds, step in ((1.0, 140), (1.0, 240), (0.1, 250)):  # 10 ms each
        pace.measure_step(seconds, to=step)
    assert pace.propose(cost_seconds=0.0, copy_seconds=1.995) == 200


def test_a_slow_measurement_at_most_doubles_it() -> None:
    pace = SnapshotInterval()
    pace.begin(0)
    pace.measure_step(0.01, to=1)
    assert pace.propose(cost_seconds=60.0, copy_seconds=0.0) == 2
    pace.adopt(2, at=1)
    assert (pace.every_steps, pace.next_step) == (2, 3)


def test_begins_at_every_step_again() -> None:
    pace = SnapshotInterval()
    pace.adopt(16, at=32)
    pace.begin(40)
    assert (pace.every_steps, pace.next_step) == (1, 41)


def test_a_given_interval_is_not_measured() -> None:
    pace = SnapshotInterval(fixed=5)
    pace.begin(10)
    assert pace.next_step == 15
    assert pace.propose(cost_seconds=60.0, copy_seconds=60.0) == 5
