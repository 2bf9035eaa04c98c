"""Promises expire: pods and gangs that should have left are not waited for any longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import Blocked, Decisions, Gang, Policy, Preemption, Snapshot
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, queue, run

GIVEN_UP = Policy().overdue_seconds
"""A gang with the deadline 0 counts as staying from this time on."""
QUEUES = (queue("research", 100),)
HIGH = gang("high", gpus=2, priority=5, at=9)
LOW = admitted(gang("low", gpus=2), "n1")


def decided(snapshot: Snapshot, *pending: Gang, now: float) -> Decisions:
    decisions = run(snapshot, *pending, now=now)
    result = violations(snapshot=snapshot, pending=pending, decisions=decisions, now=now)
    assert result == ()
    return decisions


def two_nodes(**of_first: Any) -> Snapshot:
    """n0 is full of pods of others; the low gang runs on n1."""
    full = replace(node("n0", "rack-0", used=pod(2)), **of_first)
    return cluster(full, node("n1", "rack-0"), running=(LOW,), queues=QUEUES)


def victims(decisions: Decisions) -> list[str]:
    return [victim.key for each in decisions.preemptions for victim in each.victims]


def test_a_pod_that_ends_soon_spares_a_victim_and_one_that_hangs_does_not() -> None:
    ends = two_nodes(terminating=pod(2))
    assert victims(decided(ends, HIGH, now=1.0)) == []
    hangs = two_nodes(terminating=pod(2), overdue=pod(2), hanging=("team/old (finalizer x)",))
    assert victims(decided(hangs, HIGH, now=1.0)) == ["training/low"]


def test_a_rejection_names_the_pod_that_hangs_its_node_and_its_finalizer() -> None:
    stuck = node(
        "n0", used=pod(2), terminating=pod(2), overdue=pod(2), hanging=("a/b (finalizer x)",)
    )
    (blocked,) = decided(cluster(stuck, queues=QUEUES), HIGH, now=1.0).blocked
    assert not missing(blocked.message, "foreign pods hold 2", "a/b (finalizer x) on n0")


def test_places_of_a_foreign_pod_that_nobody_binds_are_given_back_and_its_quota_is_not() -> None:
    pods = gang("pods/theirs", gpus=2)
    held = admitted(pods, "n0", reserved=frozenset({0}), is_foreign=True, is_residual=True)
    held = replace(held, leaves_by=0.0, preemptible=False)
    snapshot = cluster(node("n0"), running=(held,), queues=(queue("research", 4),))
    assert run(snapshot, HIGH, now=GIVEN_UP - 1).retry_at == GIVEN_UP
    assert run(snapshot, HIGH, now=GIVEN_UP - 1).placed == ()
    assert [each.key for each in run(snapshot, HIGH, now=GIVEN_UP).placed] == [HIGH.key]
    short = replace(snapshot, queues=(queue("research", 3),))
    (blocked,) = run(short, HIGH, now=GIVEN_UP).blocked
    assert (blocked.reason, blocked.blockers) == ("QuotaExhausted", (pods.key,))


def test_a_quota_rejection_names_the_pod_that_hangs_and_holds_the_quota() -> None:
    rest = admitted(gang("old", gpus=2, hanging=("team/old-0 on n0",)), "n0", is_residual=True)
    held = replace(rest, preemptible=False)
    snapshot = cluster(node("n0"), node("n1"), running=(held,), queues=(queue("research", 2),))
    (blocked,) = decided(snapshot, HIGH, now=1.0).blocked
    assert blocked.reason == "QuotaExhausted"
    assert not missing(blocked.message, "training/old (2)", "team/old-0 on n0")


def evicting(**more: Any) -> Snapshot:
    """n0's gang is being evicted for `high` until t=0; another low gang runs on n1."""
    leaving = admitted(gang("stuck", gpus=2), "n0", leaving=True, leaves_by=0.0)
    held = replace(leaving, **more)
    return cluster(node("n0"), node("n1"), running=(held, LOW), queues=QUEUES)


NOMINATED = replace(HIGH, nominated=("n0",), nominated_pool="h100")


def test_kept_nodes_are_released_when_the_victim_does_not_leave() -> None:
    (waits,) = decided(evicting(), NOMINATED, now=GIVEN_UP - 1).blocked
    assert waits.reason == "WaitingForVictims"
    later = decided(evicting(), NOMINATED, now=GIVEN_UP)
    assert victims(later) == ["training/low"]
    assert later.preemptions[0].assignment == ("n1",)


def test_the_next_cycle_is_due_when_the_promise_expires() -> None:
    assert decided(evicting(), NOMINATED, now=1.0).retry_at == GIVEN_UP


def test_a_gang_that_does_not_leave_keeps_its_quota_and_is_named() -> None:
    snapshot = replace(evicting(), queues=(queue("research", 4),), nodes=evicting().nodes)
    equal = replace(NOMINATED, priority=0)
    (blocked,) = decided(snapshot, equal, now=GIVEN_UP).blocked
    assert isinstance(blocked, Blocked)
    assert blocked.reason == "QuotaExhausted"
    larger = replace(snapshot, queues=QUEUES)
    (blocked,) = decided(larger, equal, now=GIVEN_UP).blocked
    assert not missing(blocked.message, "0 of 4 free")
    small = cluster(node("n0"), running=snapshot.admitted[:1], queues=QUEUES)
    (blocked,) = decided(small, equal, now=GIVEN_UP).blocked
    assert not missing(blocked.message, "training/stuck", "should have left")


def test_part_of_a_gang_that_is_not_given_up_is_counted_as_kept() -> None:
    elastic = gang("stuck", nodes=2, gpus=2, sizes=(1, 2))
    held = admitted(elastic, "n0", "n2", giving_up=frozenset({1}), leaves_by=0.0)
    nodes = (node("n0"), node("n1"), node("n2"))
    snapshot = cluster(*nodes, running=(held, LOW), queues=QUEUES)
    nominated = replace(NOMINATED, nominated=("n2",))
    assert decided(snapshot, nominated, now=1.0).blocked[0].reason == "WaitingForVictims"
    assert victims(decided(snapshot, nominated, now=GIVEN_UP)) == ["training/low"]


def test_a_move_that_does_not_happen_is_cancelled_and_its_new_nodes_are_free() -> None:
    mover = replace(evicting(nominated={0: "n2"}).admitted[0], nominated_pool="h100")
    snapshot = cluster(node("n0"), node("n2"), running=(mover,), queues=QUEUES)
    assert decided(snapshot, HIGH, now=1.0).placed == ()
    late = decided(snapshot, HIGH, now=GIVEN_UP)
    assert late.stay == ("uid-stuck",)
    assert [each.assignment for each in late.placed] == [("n2",)]


def test_an_overdue_gang_is_no_victim_and_is_not_repaired() -> None:
    broken = evicting(lost=frozenset({0}))
    alone = cluster(node("n0"), running=broken.admitted[:1], queues=QUEUES)
    late = decided(alone, now=GIVEN_UP)
    assert (late.placed, late.preemptions) == ((), ())
    whole = cluster(node("n0"), running=evicting().admitted[:1], queues=QUEUES)
    assert decided(whole, HIGH, now=GIVEN_UP).preemptions == ()


@pytest.mark.parametrize(("backs_off_for", "kept"), [(GIVEN_UP, True), (GIVEN_UP + 1, False)])
def test_nodes_are_kept_for_a_gang_that_backs_off_for_a_while_only(
    backs_off_for: float, kept: bool
) -> None:
    away = replace(NOMINATED, retry_at=backs_off_for, retry_cause="refused")
    other = gang("other", gpus=2, at=20.0)
    answers = decided(cluster(node("n0"), queues=QUEUES), away, other, now=0.0)
    assert [each.uid for each in answers.placed] == ([] if kept else ["uid-other"])


def test_seconds_of_patience_are_the_policy_s() -> None:
    patient = run(evicting(), NOMINATED, policy=Policy(overdue_seconds=1000.0), now=GIVEN_UP)
    assert not any(isinstance(each, Preemption) for each in patient.preemptions)
