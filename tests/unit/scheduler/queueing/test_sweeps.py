"""Sweeps: equal jobs of which only so many run at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import BlockReason, Gang, Policy, RemedyKind
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.expected_starts import expected_starts
from tests.texts import missing
from tests.unit.scheduler.builders import (
    BEST_EFFORT,
    STRICT,
    admitted,
    after,
    cluster,
    gang,
    node,
    queue,
    racks,
    run,
)


def sweep(count: int, *, limit: int = 2, **changes: object) -> list[Gang]:
    return [
        replace(gang(f"s{i}", gpus=2, at=i), sweep="lr", sweep_limit=limit, **changes)
        for i in range(count)
    ]


def test_of_a_sweep_the_first_start_and_the_others_wait_for_one_of_them() -> None:
    decisions = run(cluster(*racks()), *sweep(4))
    assert [placed.key for placed in decisions.placed] == ["training/s0", "training/s1"]
    last = decisions.blocked[-1]
    assert (last.reason, last.blockers) == (
        BlockReason.SWEEP_LIMIT,
        ("training/s0", "training/s1"),
    )
    assert not missing(last.message, "sweep lr", "2 jobs", "training/s0", "training/s1")
    assert last.remedy is not None
    assert last.remedy.kind is RemedyKind.WAIT_FOR


def test_what_a_sweep_leaves_others_take_even_strictly() -> None:
    decisions = run(cluster(*racks()), *sweep(4), gang("other", gpus=2, at=9.0), policy=STRICT)
    assert [placed.key for placed in decisions.placed][-1] == "training/other"


def test_a_sweep_is_of_one_namespace() -> None:
    first, second = sweep(2, limit=1)
    stranger = replace(second, key="elsewhere/s1")
    assert len(run(cluster(*racks()), first, stranger).placed) == 2


@pytest.mark.parametrize("leaving", [False, True])
def test_one_that_runs_counts_until_it_has_left(leaving: bool) -> None:
    first, second, third = sweep(3)
    snapshot = cluster(*racks(), running=[admitted(first, "n0", leaving=leaving)])
    decisions = run(snapshot, second, third)
    assert [placed.key for placed in decisions.placed] == ["training/s1"]


def test_each_brings_its_own_limit() -> None:
    small, large = sweep(1, limit=1)[0], replace(gang("b", gpus=2, at=5), sweep="lr", sweep_limit=2)
    snapshot = cluster(
        *racks(), running=[admitted(replace(small, uid="x", key="training/x"), "n0")]
    )
    decisions = run(snapshot, small, large)
    assert [placed.key for placed in decisions.placed] == ["training/b"]


def test_a_preemption_takes_one_of_the_places_of_a_sweep() -> None:
    """Both could preempt; the second waits for the first."""
    held = [admitted(gang(f"low{i}", gpus=2, queue="q"), f"n{i}") for i in range(2)]
    snapshot = cluster(
        node("n0", "rack-0"), node("n1", "rack-0"), queues=(queue("q", 8),), running=held
    )
    high = sweep(2, limit=1, queue="q", priority=9)
    decisions = run(snapshot, *high)
    assert [preemption.key for preemption in decisions.preemptions] == ["training/s0"]
    assert [blocked.reason for blocked in decisions.blocked] == [
        BlockReason.WAITING_FOR_VICTIMS,
        BlockReason.SWEEP_LIMIT,
    ]
    (preemption,) = decisions.preemptions
    kept = replace(high[0], nominated=preemption.assignment, nominated_pool=preemption.pool)
    later = run(after(snapshot, high, decisions), kept, high[1])
    assert {blocked.uid: blocked.reason for blocked in later.blocked} == {
        high[0].uid: BlockReason.WAITING_FOR_VICTIMS,
        high[1].uid: BlockReason.SWEEP_LIMIT,
    }


def test_a_gang_with_lost_nominated_places_is_not_in_its_own_way() -> None:
    (only,) = sweep(1, limit=1, nominated=("gone",), nominated_pool="h100")
    assert [placed.key for placed in run(cluster(*racks()), only).placed] == [only.key]


def test_the_forecast_starts_them_in_turns() -> None:
    pending = tuple(replace(each, max_runtime_seconds=300.0) for each in sweep(3, limit=1))
    starts = expected_starts(
        CycleInput(snapshot=cluster(*racks()), pending=pending, policy=Policy(), now=0.0), samples=9
    )
    first, second, third = (start.p50_at or 0.0 for start in starts)
    assert 0.0 == first < second < third


def test_a_thousand_equal_jobs_of_a_sweep_are_one_question() -> None:
    """All but those that start share one rejection, as one class."""
    decisions = run(cluster(*racks()), *sweep(1000), policy=BEST_EFFORT)
    assert len(decisions.placed) == 2
    assert len({blocked.message for blocked in decisions.blocked}) == 1
