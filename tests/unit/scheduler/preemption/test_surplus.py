"""What elastic gangs give up for others: pods above their smallest size, cheapest first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Decisions, Gang, Policy, Snapshot, Victim, VictimReason
from drumline_scheduler.model import Role, Slice
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, cluster, gang, pod, queue, racks, run

SURPLUS = Policy(surplus=True)
ALONE = (queue("research", 100),)
COHORT = (queue("org"), queue("a", 4, parent="org"), queue("b", 8, parent="org"))
ELASTIC = gang("e", nodes=6, gpus=2, sizes=(2, 3, 4, 5, 6))
SEATS = ("n0", "n0", "n1", "n1", "n2", "n2")


def full(item: Gang = ELASTIC, *, seats: tuple[str, ...] = SEATS, risk: float = 100.0) -> Snapshot:
    """Three nodes of 4 GPUs, full of an elastic gang of 2 GPUs a pod."""
    held = admitted(item, *seats, gpu_seconds_at_risk=risk)
    return cluster(*racks(count=1, nodes=3, gpus=4), running=[held], queues=ALONE)


def decided(snapshot: Snapshot, *pending: Gang, policy: Policy = SURPLUS) -> Decisions:
    decisions = run(snapshot, *pending, policy=policy)
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    return decisions


def victims(decisions: Decisions) -> tuple[Victim, ...]:
    return tuple(victim for preemption in decisions.preemptions for victim in preemption.victims)


def test_a_running_gang_gives_up_as_many_pods_as_are_needed_and_goes_on() -> None:
    decisions = decided(full(), gang("x", gpus=4, priority=5))
    assert victims(decisions) == (
        Victim(
            key="training/e",
            uid="uid-e",
            gpus=4,
            gpu_seconds_lost=0.0,
            why=VictimReason.LOWER_PRIORITY,
            kept=(0, 1, 2, 3),
        ),
    )
    assert decisions.preemptions[0].assignment == ("n2",)
    assert "continues with 4 pods" in decisions.preemptions[0].message


def test_without_the_owners_leave_all_of_it_goes() -> None:
    decisions = decided(full(), gang("x", gpus=4, priority=5), policy=Policy())
    assert [(victim.gpus, victim.kept) for victim in victims(decisions)] == [(12, ())]


def test_below_its_smallest_size_all_of_it_goes() -> None:
    decisions = decided(full(), gang("x", nodes=5, gpus=2, priority=5))
    assert [
        (victim.gpus, victim.gpu_seconds_lost, victim.kept) for victim in victims(decisions)
    ] == [(12, 100.0, ())]


def test_a_size_that_was_chosen_at_the_start_stays() -> None:
    decisions = decided(full(replace(ELASTIC, resizable=False)), gang("x", gpus=4, priority=5))
    assert [victim.kept for victim in victims(decisions)] == [()]


def test_pods_that_are_still_to_come_leave_as_others_do() -> None:
    held = admitted(ELASTIC, *SEATS, reserved=frozenset(range(6)))
    snapshot = cluster(*racks(count=1, nodes=3, gpus=4), running=[held], queues=ALONE)
    decisions = decided(snapshot, gang("x", gpus=4, priority=5))
    assert [(victim.gpus, victim.kept) for victim in victims(decisions)] == [(4, (0, 1, 2, 3))]


def test_what_a_gang_gives_up_already_is_not_asked_of_it_again() -> None:
    held = admitted(ELASTIC, *SEATS, giving_up=frozenset({4, 5}))
    closed, *rest = reversed(racks(count=1, nodes=3, gpus=4))
    nodes = (replace(closed, unschedulable=True), *rest)
    snapshot = cluster(*nodes, running=[held], queues=ALONE)
    decisions = decided(snapshot, gang("x", gpus=4, priority=5, nominated=("n2",)))
    assert [(victim.gpus, victim.kept) for victim in victims(decisions)] == [(8, ())]


def test_only_whole_slices_leave() -> None:
    sliced = replace(ELASTIC, sizes=(2, 4, 6), slices=(Slice(level="rack", pods=2),))
    decisions = decided(full(sliced), gang("x", gpus=2, priority=5))
    assert [(victim.gpus, victim.kept) for victim in victims(decisions)] == [(4, (0, 1, 2, 3))]


def test_pods_of_roles_are_no_surplus() -> None:
    led = replace(ELASTIC, roles=(Role(name="launcher", pods=1, per_pod=pod(0, cpu=1)),))
    snapshot = full(led, seats=("n2", *SEATS))
    decisions = decided(snapshot, gang("x", gpus=4, priority=5))
    # the launcher stays on n2, so n1 is the node that can be empty
    assert [victim.kept for victim in victims(decisions)] == [(0, 1, 2, 5, 6)]


def test_surplus_goes_before_a_gang_that_loses_its_work() -> None:
    small = replace(ELASTIC, nodes=4, sizes=(2, 3, 4))
    running = [
        admitted(small, "n0", "n0", "n1", "n1", gpu_seconds_at_risk=1000.0),
        admitted(gang("rigid", gpus=4), "n2", gpu_seconds_at_risk=1.0),
    ]
    snapshot = cluster(*racks(count=1, nodes=3, gpus=4), running=running, queues=ALONE)
    decisions = decided(snapshot, gang("x", gpus=4, priority=5))
    assert [(victim.key, victim.kept) for victim in victims(decisions)] == [("training/e", (0, 1))]


def test_surplus_and_whole_gangs_leave_together() -> None:
    small = replace(ELASTIC, nodes=4, sizes=(2, 3, 4))
    running = [
        admitted(small, "n0", "n0", "n1", "n1", gpu_seconds_at_risk=100.0),
        admitted(gang("rigid", gpus=4), "n2"),
    ]
    snapshot = cluster(*racks(count=1, nodes=3, gpus=4), running=running, queues=ALONE)
    decisions = decided(snapshot, gang("x", nodes=2, gpus=4, priority=5))
    assert [(victim.key, victim.kept) for victim in victims(decisions)] == [
        ("training/e", (0, 1)),
        ("training/rigid", ()),
    ]


def test_only_what_was_borrowed_is_reclaimed() -> None:
    """Queue `a` holds 12 of its 4 GPUs; all of it but the last GPUs may be asked for."""
    borrower = replace(ELASTIC, queue="a")
    held = admitted(borrower, *SEATS)
    snapshot = cluster(*racks(count=1, nodes=3, gpus=4), running=[held], queues=COHORT)
    decisions = decided(snapshot, gang("x", nodes=2, gpus=4, queue="b"))
    assert [(victim.why, victim.gpus, victim.kept) for victim in victims(decisions)] == [
        (VictimReason.BORROWED, 8, (0, 1))
    ]


@pytest.mark.parametrize("gone", [False, True])
def test_places_are_kept_until_the_pods_are_gone(*, gone: bool) -> None:
    snapshot, wants = full(), gang("x", gpus=4, priority=5)
    first = decided(snapshot, wants)
    answer = replace(snapshot.admitted[0], giving_up=frozenset({4, 5}))
    kept = replace(wants, nominated=first.preemptions[0].assignment, nominated_pool="h100")
    if gone:
        smaller = admitted(ELASTIC, "n0", "n0", "n1", "n1")
        nodes = racks(count=1, nodes=3, gpus=4)
        done = decided(cluster(*nodes, running=[smaller], queues=ALONE), kept)
        assert [placed.assignment for placed in done.placed] == [("n2",)]
        assert done.resized == ()
        return
    other = gang("other", gpus=1, at=1.0)
    again = decided(replace(snapshot, admitted=(answer,)), kept, other)
    assert again.preemptions == ()
    assert again.placed == ()
    assert again.blocked[0] == first.blocked[0]
