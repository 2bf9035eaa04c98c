"""Gangs that start after other jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import (
    BlockReason,
    CycleCache,
    CycleInput,
    Gang,
    Predecessor,
    PredecessorState,
    RemedyKind,
    decide,
)
from drumline_scheduler.queueing.predecessors import waiting_for_predecessors
from tests.texts import missing
from tests.unit.scheduler.builders import BEST_EFFORT, STRICT, cluster, gang, node, racks, run


def behind(name: str, **changes: object) -> Predecessor:
    return replace(Predecessor(key=f"training/{name}"), **changes)


def chained(name: str, *predecessors: Predecessor, **changes: object) -> Gang:
    return replace(gang(name, gpus=2), after=predecessors, **changes)


def test_a_gang_with_a_predecessor_waits_although_there_is_room() -> None:
    decisions = run(cluster(*racks()), chained("b", behind("a")))
    assert decisions.placed == ()
    (blocked,) = decisions.blocked
    assert (blocked.reason, blocked.blockers) == (BlockReason.WAITING_FOR_JOBS, ("training/a",))
    assert not missing(blocked.message, "training/a")
    assert blocked.remedy is not None
    assert blocked.remedy.kind is RemedyKind.WAIT_FOR


def test_nothing_is_kept_for_it_and_nobody_is_held_up() -> None:
    """Even strictly: it is not in line before it may start."""
    first = chained("b", behind("a"), priority=9)
    decisions = run(cluster(node("n0", "rack-0")), first, gang("c", gpus=2, at=1.0), policy=STRICT)
    assert [placed.key for placed in decisions.placed] == ["training/c"]


def test_a_group_waits_for_its_gang_that_waits_for_a_job() -> None:
    first = replace(gang("one"), group="g", group_gangs=2)
    second = chained("other", behind("a"), group="g", group_gangs=2)
    reasons = {each.key: each.reason for each in run(cluster(*racks()), first, second).blocked}
    assert reasons == {
        "training/one": BlockReason.WAITING_FOR_GROUP,
        "training/other": BlockReason.WAITING_FOR_JOBS,
    }


def test_once_nothing_holds_it_back_it_starts_also_with_a_cache() -> None:
    cache, snapshot = CycleCache(), cluster(*racks())
    waits = chained("b", behind("a"))

    def starts(pending: Gang) -> list[str]:
        decisions = decide(
            CycleInput(snapshot=snapshot, pending=(pending,), policy=BEST_EFFORT, now=0.0),
            cache=cache,
        )
        assert len(decisions.placed) + len(decisions.blocked) == 1
        return [placed.key for placed in decisions.placed]

    assert starts(waits) == starts(waits) == []
    assert starts(replace(waits, after=())) == ["training/b"]
    assert starts(waits) == []


@pytest.mark.parametrize(
    ("predecessors", "reason", "message"),
    [
        (
            [behind("a"), behind("b", must_succeed=False)],
            BlockReason.WAITING_FOR_JOBS,
            "starts after training/a has succeeded, training/b has ended",
        ),
        (
            [behind("a"), behind("b", state=PredecessorState.NOT_FOUND)],
            BlockReason.PREDECESSOR_NOT_FOUND,
            "starts after training/b, which does not exist: create it, or",
        ),
        (
            [
                behind("b", state=PredecessorState.NOT_FOUND),
                behind("c", state=PredecessorState.FAILED),
            ],
            BlockReason.PREDECESSOR_FAILED,
            "starts after training/c has succeeded, but it failed: delete it and create it again,",
        ),
        (
            [
                behind("c", state=PredecessorState.FAILED),
                behind("a", state=PredecessorState.CIRCULAR, circle=("x", "y", "x")),
            ],
            BlockReason.CIRCULAR_DEPENDENCY,
            "spec.after has a cycle, x after y after x: suspend one of these jobs and change",
        ),
    ],
)
def test_what_a_person_has_to_mend_is_said_first(
    predecessors: list[Predecessor], reason: BlockReason, message: str
) -> None:
    rejection = waiting_for_predecessors(predecessors)
    assert rejection.reason is reason
    assert rejection.message.startswith(message)
