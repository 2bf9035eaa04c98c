"""A broken gang that may send others away, and what is kept for it until they are gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import BlockReason, Decisions, Gang, Policy, Snapshot
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, cluster, gang, queue, racks, run, without

MAY = Policy(repairs_preempt=True)
ALONE = (queue("research", 100),)
BROKEN = gang("b", nodes=2, gpus=4, priority=5)


def world(*, priority: int = 5, **changes: object) -> Snapshot:
    """One rack of 3 nodes: a gang that lost its second node, and two others on the rest."""
    running = [
        admitted(replace(BROKEN, priority=priority), "n0", "gone", lost=frozenset({1}), **changes),
        admitted(gang("cheap", gpus=4), "n1", gpu_seconds_at_risk=1.0),
        admitted(gang("dear", gpus=4), "n2", gpu_seconds_at_risk=9.0),
    ]
    return cluster(*racks(count=1, nodes=3, gpus=4), running=running, queues=ALONE)


def decided(snapshot: Snapshot, *pending: Gang, policy: Policy = MAY) -> Decisions:
    decisions = run(snapshot, *pending, policy=policy)
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    return decisions


def test_the_cheapest_gang_leaves_and_the_other_places_stay() -> None:
    (preemption,) = decided(world()).preemptions
    assert [victim.key for victim in preemption.victims] == ["training/cheap"]
    assert (preemption.assignment, preemption.replaced) == (("n0", "n1"), (1,))


@pytest.mark.parametrize(
    ("snapshot", "policy"),
    [(world(), Policy()), (world(priority=0), MAY)],
    ids=["not allowed", "no higher priority"],
)
def test_nobody_leaves(snapshot: Snapshot, policy: Policy) -> None:
    decisions = decided(snapshot, policy=policy)
    assert decisions.preemptions == ()
    assert [blocked.reason for blocked in decisions.blocked] == [BlockReason.INSUFFICIENT_GPUS]


def test_its_own_quota_does_not_keep_a_whole_queue_from_a_repair() -> None:
    """The queue is full with the lost place counted; the victim's leaving makes up for it."""
    full = replace(world(), queues=(queue("research", 16),))
    (preemption,) = decided(full).preemptions
    assert [victim.key for victim in preemption.victims] == ["training/cheap"]


def test_its_place_is_kept_from_others_until_it_is_free() -> None:
    snapshot = world(nominated={1: "n1"})
    answer = replace(
        snapshot,
        admitted=tuple(
            replace(held, leaving=held.gang.key == "training/cheap") for held in snapshot.admitted
        ),
    )
    again = decided(answer, gang("late", gpus=4))
    assert (again.preemptions, again.placed) == ((), ())
    assert again.blocked[0].reason is BlockReason.WAITING_FOR_VICTIMS
    after = decided(without(answer, "cheap"), gang("late", gpus=4))
    assert [(placed.key, placed.assignment) for placed in after.placed] == [
        ("training/b", ("n0", "n1"))
    ]


def test_a_node_that_comes_back_is_taken_and_the_kept_one_is_free_again() -> None:
    snapshot = world(nominated={1: "n1"})
    spare = racks(count=1, nodes=4, gpus=4)[3]
    answer = replace(
        snapshot,
        nodes=(*snapshot.nodes, spare),
        admitted=tuple(
            replace(held, leaving=held.gang.key == "training/cheap") for held in snapshot.admitted
        ),
    )
    decisions = decided(answer)
    assert [placed.assignment for placed in decisions.placed] == [("n0", "n3")]


def test_an_elastic_gang_goes_on_smaller_before_anybody_leaves() -> None:
    elastic = replace(BROKEN, sizes=(1, 2))
    running = [
        admitted(elastic, "n0", "gone", lost=frozenset({1})),
        admitted(gang("other", gpus=4), "n1"),
    ]
    snapshot = cluster(*racks(count=1, nodes=2, gpus=4), running=running, queues=ALONE)
    decisions = decided(snapshot)
    assert decisions.preemptions == ()
    assert [resized.kept for resized in decisions.resized] == [(0,)]


def test_one_that_cannot_be_repaired_starves_no_other() -> None:
    """The first broken gang needs a selector that no node has; the second is repaired."""
    lost = frozenset({1})
    running = [
        admitted(replace(BROKEN, selector={"zone": "moon"}), "n0", "gone", lost=lost),
        admitted(gang("c", nodes=2, gpus=4, priority=4), "n1", "gone", lost=lost),
        admitted(gang("low", gpus=4), "n2"),
    ]
    snapshot = cluster(*racks(count=1, nodes=3, gpus=4), running=running, queues=ALONE)
    (preemption,) = decided(snapshot).preemptions
    assert (preemption.key, preemption.assignment) == ("training/c", ("n1", "n2"))


def test_a_gang_that_lost_everything_asks_for_its_quota_too() -> None:
    """It would borrow again what its victim does not give back: not even a lower one leaves."""
    queues = (queue("org", 4), queue("a", 0, parent="org"))
    low = gang("low", gpus=2, queue="a")
    all_lost = replace(BROKEN, nodes=1, queue="a")
    running = [admitted(all_lost, "gone", lost=frozenset({0})), admitted(low, "n0")]
    snapshot = cluster(*racks(count=1, nodes=1, gpus=4), running=running, queues=queues)
    assert decided(snapshot).preemptions == ()


def test_one_that_waits_for_its_repair_is_nobodys_victim() -> None:
    """The waiting gang has the higher priority, and finds others to send away."""
    decisions = decided(world(), gang("top", gpus=4, priority=9))
    assert {
        victim.key for preemption in decisions.preemptions for victim in preemption.victims
    } == {
        "training/cheap",
        "training/dear",
    }
