"""Gangs that were told to move and have nowhere to go: they stay, and nobody gets their places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_scheduler import Admitted, BlockReason, Decisions, Gang, Node, Queue, Snapshot
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, cluster, gang, node, run

POOLS = ("owned", "rented")
QUEUE = Queue(name="research", nominal={"owned": 4, "rented": 4})
OWNED, RENTED = node("o", "rack-0", pool="owned"), node("r", "rack-0", pool="rented")
CLOSED = replace(OWNED, unschedulable=True)


def mover(name: str, where: str, to: str, *, pool: str, pool_then: str, **more: Any) -> Admitted:
    """A gang of one pod of two GPUs on its way from one node to another."""
    gang_a = gang(name, gpus=2)
    way = {"leaving": True, "nominated": {0: to}, "nominated_pool": pool_then}
    return admitted(gang_a, where, pool=pool, **way, **more)


BACK = mover("x", "r", "o", pool="rented", pool_then="owned")


def world(*nodes: Node, running: tuple[Admitted, ...], queue: Queue = QUEUE) -> Snapshot:
    return cluster(*nodes, pools=POOLS, queues=(queue,), running=running)


def decided(snapshot: Snapshot, *pending: Gang) -> Decisions:
    decisions = run(snapshot, *pending, now=100.0)
    result = violations(snapshot=snapshot, pending=pending, decisions=decisions, now=100.0)
    assert result == ()
    return decisions


def test_it_leaves_while_its_new_places_are_kept() -> None:
    assert decided(world(OWNED, RENTED, running=(BACK,))).stay == ()


def test_it_stays_when_its_new_node_is_closed_taken_or_gone() -> None:
    stranger = replace(OWNED, used=replace(OWNED.allocatable, cpu_millis=0, pods=1))
    assert decided(world(CLOSED, RENTED, running=(BACK,))).stay == ("uid-x",)
    assert decided(world(stranger, RENTED, running=(BACK,))).stay == ("uid-x",)
    assert decided(world(RENTED, running=(BACK,))).stay == ("uid-x",)


def test_it_stays_when_its_queue_has_no_quota_there_any_more() -> None:
    queue = replace(QUEUE, nominal={"owned": 0, "rented": 4})
    assert decided(world(OWNED, RENTED, running=(BACK,), queue=queue)).stay == ("uid-x",)


def test_it_stays_when_the_pool_to_go_to_is_gone() -> None:
    snapshot = cluster(RENTED, pools=("rented",), queues=(QUEUE,), running=(BACK,))
    assert decided(snapshot).stay == ("uid-x",)


def test_so_does_whoever_was_to_have_its_places() -> None:
    follower = mover("a", "r2", "r", pool="rented", pool_then="rented")
    nodes = (RENTED, replace(RENTED, name="r2"))
    assert decided(world(OWNED, *nodes, running=(follower, BACK))).stay == ()
    decisions = decided(world(CLOSED, *nodes, running=(follower, BACK)))
    assert decisions.stay == ("uid-a", "uid-x")


def test_a_waiting_gang_for_which_it_was_to_move_is_promised_nothing_any_more() -> None:
    waits = gang("w", gpus=2, pool="rented", nominated=("r",), nominated_pool="rented")
    (before,) = decided(world(OWNED, RENTED, running=(BACK,)), waits).blocked
    assert before.reason is BlockReason.WAITING_FOR_VICTIMS
    decisions = decided(world(CLOSED, RENTED, running=(BACK,)), waits)
    assert decisions.stay == ("uid-x",)
    assert [rejection.reason for rejection in decisions.blocked] == [BlockReason.INSUFFICIENT_GPUS]


def test_whoever_leaves_for_others_only_is_not_held_back() -> None:
    leaves = replace(BACK, nominated={}, nominated_pool="")
    assert decided(world(CLOSED, RENTED, running=(leaves,))).stay == ()
