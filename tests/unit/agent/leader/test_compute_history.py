"""What the leader notes of its ranks' compute times, point by point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drumline_agent.leader.compute_history import ComputeHistory
from drumline_agent.protocol.member_reports import RankView
from drumline_contract import ComputePoint
from drumline_contract.rank_compute import RECENT_COMPUTE_POINTS
from tests.unit.agent.leader.test_stragglers import MEMBERSHIP, measured, record


def after(
    history: ComputeHistory, *looks: Sequence[RankView], attempt: int = 0
) -> tuple[ComputePoint, ...]:
    points: tuple[ComputePoint, ...] = ()
    for views in looks:
        points = history.after(views, membership=(MEMBERSHIP[0], attempt))
    return points


def test_a_point_compares_the_ranks_after_the_first_measurement() -> None:
    history = ComputeHistory(record())
    assert after(history, measured(10, (9.0, 1.0, 1.0, 1.0))) == ()
    points = after(history, measured(20, (1.0, 1.0, 1.5, 0.8)))
    assert points == (ComputePoint(step=20, ranks=4, ratios=(1.0, 1.0, 1.5, 0.8)),)
    assert after(history, measured(20, (1.0, 1.0, 1.5, 0.8))) == points


def test_a_point_waits_until_every_rank_has_measured_again() -> None:
    history = ComputeHistory(record())
    even = (1.0, 1.0, 1.0, 1.0)
    early, late = measured(20, even), measured(10, even)
    assert after(history, late, [*early[:3], late[3]]) == ()
    assert [point.step for point in after(history, early)] == [20]


def test_ranks_with_other_work_or_too_few_with_the_same_are_not_compared() -> None:
    history = ComputeHistory(record(members=5))
    seconds, stages = (2.0, 2.0, 3.0, 7.0, 1.0), (0, 0, 0, 1, 1)
    looks = [measured(step, seconds, stages=stages) for step in (10, 20)]
    assert [point.ratios for point in after(history, *looks)] == [(1.0, 1.0, 1.5, None, None)]
    pair = ComputeHistory(record(members=2))
    assert after(pair, *(measured(step, (1.0, 2.0)) for step in (10, 20))) == ()


def test_ranks_that_measure_nothing_are_not_known() -> None:
    history = ComputeHistory(record())
    looks = [measured(step, (1.0, 1.0, 1.0, 1.0)) for step in (10, 20)]
    silent = [[*views[:3], replace(views[3], compute=None)] for views in looks]
    assert [point.ratios for point in after(history, *silent)] == [(1.0, 1.0, 1.0, None)]
    assert after(ComputeHistory(record()), [replace(v, compute=None) for v in looks[0]]) == ()


def test_a_long_attempt_keeps_few_points_and_a_new_one_none() -> None:
    history = ComputeHistory(record())
    looks = [measured(step, (1.0, 1.0, 1.0, 1.0)) for step in range(10, 1000, 10)]
    steps = [point.step for point in after(history, *looks)]
    assert len(steps) == RECENT_COMPUTE_POINTS
    assert (steps[0], steps[-1]) == (20, 990)
    assert after(history, measured(990, (1.0, 1.0, 1.0, 1.0)), attempt=1) == ()
