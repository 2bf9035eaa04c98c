"""A gang that may not evict gets free capacity, and no other gang leaves or moves for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import Decisions, Gang, MoveBudget, Policy, Snapshot
from tests.property.invariants import violations
from tests.property.scale import many
from tests.property.test_scheduling_preemption import world
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue, run

QUEUES = (queue("research", 100),)
HIGH = gang("high", gpus=2, priority=5, at=9)
CASES: list[dict[str, Any]] = [{"preempts": False}, {"refusal": "no claim"}]
WORDS = ("Never", "no claim")
COHORT = (queue("org"), queue("a", 2, parent="org"), queue("b", 2, parent="org"))


def decided(snapshot: Snapshot, *pending: Gang, policy: Policy | None = None) -> Decisions:
    chosen = policy or Policy()
    decisions = run(snapshot, *pending, policy=chosen)
    result = violations(
        snapshot=snapshot, pending=pending, decisions=decisions, policy=chosen, now=0.0
    )
    assert result == ()
    return decisions


def full(**more: Any) -> Snapshot:
    low = admitted(gang("low", gpus=2), "n0", **more)
    return cluster(node("n0"), running=(low,), queues=QUEUES)


@pytest.mark.parametrize(("case", "word"), list(zip(CASES, WORDS, strict=True)))
def test_it_waits_and_says_why_it_evicts_nobody(case: dict[str, Any], word: str) -> None:
    assert decided(full(), HIGH).preemptions
    decisions = decided(full(), replace(HIGH, **case))
    assert decisions.preemptions == ()
    assert not missing(decisions.blocked[0].message, "training/low", word)


@pytest.mark.parametrize("case", CASES)
def test_it_starts_on_free_capacity_before_lower_gangs(case: dict[str, Any]) -> None:
    low = gang("low", gpus=2)
    decisions = decided(cluster(node("n0"), queues=QUEUES), low, replace(HIGH, **case))
    assert [placed.key for placed in decisions.placed] == ["training/high"]


@pytest.mark.parametrize("case", CASES)
def test_an_equal_gang_that_may_evict_still_does(case: dict[str, Any]) -> None:
    first = replace(HIGH, uid="uid-first", key="training/first", queued_at=1.0, **case)
    (preemption,) = decided(full(), first, HIGH).preemptions
    assert preemption.key == "training/high"


@pytest.mark.parametrize("case", CASES)
def test_it_reclaims_nothing_either(case: dict[str, Any]) -> None:
    borrowers = [admitted(gang(f"b{i}", gpus=2, queue="b"), f"n{i}") for i in range(2)]
    snapshot = cluster(node("n0"), node("n1"), running=borrowers, queues=COHORT)
    owner = gang("owner", gpus=2, queue="a")
    assert decided(snapshot, owner).preemptions
    assert decided(snapshot, replace(owner, **case)).preemptions == ()


@pytest.mark.parametrize("case", CASES)
def test_its_repair_evicts_nobody(case: dict[str, Any]) -> None:
    policy = Policy(repairs_preempt=True)
    gang_of_two = gang("broken", nodes=2, gpus=2, priority=5)

    def broken(each: Gang) -> Snapshot:
        held = admitted(each, "n1", "gone", lost=frozenset({1}))
        low = admitted(gang("low", gpus=2), "n0")
        return cluster(node("n0"), node("n1"), running=(held, low), queues=QUEUES)

    assert decided(broken(gang_of_two), policy=policy).preemptions
    assert decided(broken(replace(gang_of_two, **case)), policy=policy).preemptions == ()


def scattered(**of_mover: Any) -> Snapshot:
    """Two racks, each half full: a gang that needs a whole rack waits for a move."""
    left = admitted(gang("left", gpus=2, **of_mover), "n0")
    right = admitted(gang("right", gpus=2, **of_mover), "n2")
    nodes = [node(f"n{i}", f"rack-{i // 2}") for i in range(4)]
    return cluster(*nodes, running=(left, right), queues=QUEUES)


WHOLE = gang("whole", nodes=2, gpus=2, required_level="rack")
MOVES = Policy(moves=MoveBudget())


@pytest.mark.parametrize("case", CASES)
def test_nobody_moves_for_it(case: dict[str, Any]) -> None:
    assert decided(scattered(), WHOLE, policy=MOVES).preemptions
    assert decided(scattered(), replace(WHOLE, **case), policy=MOVES).preemptions == ()


def test_a_gang_that_could_not_start_again_is_not_moved() -> None:
    stuck = scattered(refusal="its namespace is being deleted")
    assert decided(stuck, WHOLE, policy=MOVES).preemptions == ()
    assert decided(scattered(preempts=False), WHOLE, policy=MOVES).preemptions


DELAYED = Policy(preemption_delay_seconds=60.0)


@pytest.mark.parametrize(("now", "evicts"), [(68.0, False), (69.0, True)])
def test_a_gang_that_has_not_waited_for_the_delay_evicts_nobody(now: float, evicts: bool) -> None:
    decisions = run(full(), HIGH, policy=DELAYED, now=now)
    assert bool(decisions.preemptions) is evicts
    if not evicts:
        assert decisions.retry_at == HIGH.queued_at + 60
        assert not missing(decisions.blocked[0].message, "training/low", "60 s")


def test_within_the_delay_a_gang_starts_on_free_capacity() -> None:
    decisions = run(cluster(node("n0"), queues=QUEUES), HIGH, policy=DELAYED, now=10.0)
    assert [placed.key for placed in decisions.placed] == ["training/high"]


def test_of_equal_gangs_the_one_that_has_waited_evicts() -> None:
    old = replace(HIGH, uid="uid-old", key="training/old", queued_at=1.0)
    (preemption,) = run(full(), HIGH, old, policy=DELAYED, now=65.0).preemptions
    assert preemption.key == "training/old"


@pytest.mark.parametrize("seed", range(many(30, 500)))
def test_the_delay_decides_nothing_but_who_may_evict(seed: int) -> None:
    """The oracle: a gang within the delay is one that may not evict."""
    snapshot, asks = world(seed)
    new = replace(asks, queued_at=100.0)
    delayed = run(snapshot, new, policy=DELAYED, now=130.0)
    polite = run(snapshot, replace(new, preempts=False), now=130.0)
    assert delayed.placed == polite.placed
    assert not delayed.preemptions
    assert [each.reason for each in delayed.blocked] == [each.reason for each in polite.blocked]
    later = run(snapshot, new, policy=DELAYED, now=160.0)
    assert later == run(snapshot, new, now=160.0)
