"""The law of preemption by fair share, in the smallest worlds that show each of its words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import (
    Admitted,
    Decisions,
    Gang,
    Policy,
    PreemptionRule,
    Queue,
    Reclaim,
    Snapshot,
    VictimReason,
    WithinQueue,
)
from tests.property.invariants import violations
from tests.unit.scheduler.builders import (
    admitted,
    after,
    cluster,
    gang,
    queue,
    racks,
    run,
    still_waiting,
)

FAIR = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.FAIR_SHARE)


def team(
    *, a: int = 0, b: int = 0, org: int = 8, weights: tuple[float, float] = (1.0, 1.0)
) -> tuple[Queue, ...]:
    """Two queues that share a cohort's quota."""
    return (
        queue("org", org),
        queue("a", a, parent="org", preemption=FAIR, weight=weights[0]),
        queue("b", b, parent="org", preemption=FAIR, weight=weights[1]),
    )


def jobs(name: str, count: int, *, gpus: int = 1) -> list[Gang]:
    return [gang(f"{name}{i}", queue=name, gpus=gpus, at=i) for i in range(count)]


def running(name: str, count: int, *, gpus: int = 1, first: int = 0) -> list[Admitted]:
    """One after the other on nodes of two GPUs."""
    return [
        admitted(item, f"n{(first + i * gpus) // 2}")
        for i, item in enumerate(jobs(name, count, gpus=gpus))
    ]


def world(*held: Admitted, queues: tuple[Queue, ...], **history: float) -> Snapshot:
    return replace(cluster(*racks(), queues=queues, running=held), history=history)


def decided(snapshot: Snapshot, *pending: Gang, policy: Policy | None = None) -> Decisions:
    policy = policy or Policy()
    decisions = run(snapshot, *pending, policy=policy)
    result = violations(snapshot=snapshot, pending=pending, decisions=decisions, policy=policy)
    assert result == ()
    return decisions


def victims(decisions: Decisions) -> list[tuple[str, VictimReason]]:
    return [
        (victim.key.removeprefix("training/"), victim.why)
        for preemption in decisions.preemptions
        for victim in preemption.victims
    ]


def test_a_queue_that_borrows_may_take_from_one_that_borrowed_more() -> None:
    snapshot = world(*running("a", 8), queues=team())
    result = victims(decided(snapshot, gang("x", queue="b", gpus=2)))
    assert [why for _, why in result] == [VictimReason.FAIR_SHARE] * 2


@pytest.mark.parametrize(("held", "lawful"), [((5, 3), True), ((4, 4), False)])
def test_the_victims_side_keeps_at_least_as_much(held: tuple[int, int], lawful: bool) -> None:
    snapshot = world(*running("a", held[0]), *running("b", held[1], first=held[0]), queues=team())
    assert bool(victims(decided(snapshot, gang("x", queue="b")))) is lawful


@pytest.mark.parametrize(("weight", "count"), [(1.0, 4), (3.0, 6)])
def test_weights_say_how_far_it_goes(weight: float, count: int) -> None:
    """Job after job, until what is borrowed stands as the weights do."""
    snapshot = world(*running("a", 8), queues=team(weights=(1.0, weight)))
    decisions = decided(snapshot, *[gang(f"x{i}", queue="b", at=i) for i in range(8)])
    assert len(victims(decisions)) == count


def test_a_victim_that_is_too_large_stays() -> None:
    """Without it `a` would have less than `b` with the asking gang."""
    snapshot = world(*running("a", 1, gpus=2), queues=team(org=2))
    assert victims(decided(snapshot, gang("x", queue="b"))) == []


def test_what_is_not_borrowed_is_not_taken_by_one_that_borrows() -> None:
    snapshot = world(*running("a", 4, gpus=2), queues=team(a=7, org=1))
    assert victims(decided(snapshot, gang("x", queue="b"))) == []
    entitled = victims(decided(world(*running("a", 4, gpus=2), queues=team(a=7, b=1, org=0)),
        gang("x", queue="b")))  # fmt: skip
    assert [why for _, why in entitled] == [VictimReason.BORROWED]


def test_who_has_had_much_gives_more() -> None:
    queues = team()
    equal = [*running("a", 4), *running("b", 4, first=4)]
    asks = gang("x", queue="b")
    assert victims(decided(world(*equal, queues=queues), asks)) == []
    past = world(*equal, queues=queues, a=86400.0)
    assert [why for _, why in victims(decided(past, asks))] == [VictimReason.FAIR_SHARE]
    assert victims(decided(past, asks, policy=Policy(history_weight=0.0))) == []


def test_inside_a_cohort_that_is_within_its_quota_its_members_may_borrow() -> None:
    queues = (
        queue("org"),
        queue("west", 4, parent="org"),
        queue("w", 0, parent="west", preemption=FAIR),
        queue("east", 4, parent="org", preemption=FAIR),
    )
    snapshot = world(*running("east", 8), queues=queues)
    decisions = decided(snapshot, *[gang(f"x{i}", queue="w", at=i) for i in range(8)])
    result = victims(decisions)
    assert [why for _, why in result] == [VictimReason.BORROWED] * 4


def test_no_two_queues_send_each_other_away_for_ever() -> None:
    """Jobs of 3 and 2 GPUs on 8: whoever was sent away waits again, until nobody may any more."""
    queues, waiting = team(), [*jobs("a", 3, gpus=2), *jobs("b", 4, gpus=2)]
    snapshot, rounds = world(queues=queues), 0
    while True:
        decisions = decided(snapshot, *waiting)
        if not decisions.placed and not decisions.preemptions:
            break
        rounds += 1
        assert rounds < 20
        snapshot = after(snapshot, waiting, decisions)
        left = [replace(item, reserved=frozenset()) for item in snapshot.admitted]
        waiting = still_waiting(waiting, decisions) + [held.gang for held in left if held.leaving]
        stay = [item for item in left if not item.leaving]
        snapshot = world(*stay, queues=queues)
    held = sorted(held.gang.queue for held in snapshot.admitted)
    assert held == ["a", "a", "b", "b"]
