"""Slices of which each has to share one node, where some of their pods are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import BlockReason, Node, Slice, Snapshot
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, run

LEVELS = ("rack", "host")
PAIRS = gang("a", nodes=4, slices=(Slice(level="host", pods=2),))


def host(name: str, *, gpus: int, **changes: object) -> Node:
    return replace(node(name, "r0", name, gpus=gpus), **changes)  # pyright: ignore[reportArgumentType]


def broken(*nodes: Node) -> Snapshot:
    """A gang of two pairs, on n0 and n1, that lost a pod of the second."""
    held = admitted(PAIRS, "n0", "n0", "n1", "n1", lost=frozenset({3}))
    return cluster(*nodes, levels=LEVELS, running=[held])


def test_a_lost_pod_goes_back_to_the_node_of_its_pair() -> None:
    """Beside the other pair there is just as much room, and it would be the tighter one."""
    snapshot = broken(host("n0", gpus=3), host("n1", gpus=4), host("n2", gpus=2))
    assert run(snapshot).placed[0].assignment == ("n0", "n0", "n1", "n1")


def test_the_last_free_gpu_of_that_node_is_enough() -> None:
    snapshot = broken(host("n0", gpus=3), host("n1", gpus=2))
    assert run(snapshot).placed[0].assignment == ("n0", "n0", "n1", "n1")


@pytest.mark.parametrize(
    ("changes", "reason", "why"),
    [
        ({"used": pod(1)}, BlockReason.TOPOLOGY_DOES_NOT_FIT, "foreign pods hold 1"),
        ({"unschedulable": True}, BlockReason.NODES_UNAVAILABLE, "1 of 3 nodes cannot be used"),
    ],
    ids=["a stranger", "cordoned"],
)
def test_no_other_node_will_do(changes: dict[str, object], reason: BlockReason, why: str) -> None:
    snapshot = broken(host("n0", gpus=4), host("n1", gpus=2, **changes), host("n2", gpus=2))
    decisions = run(snapshot)
    assert decisions.placed == ()
    assert decisions.blocked[0].reason is reason
    assert why in decisions.blocked[0].message


def test_the_others_of_a_gang_leave_room_for_it() -> None:
    """A whole pair is lost beside it: it must not take the one place on n1."""
    held = admitted(PAIRS, "x", "x", "n1", "y", lost=frozenset({0, 1, 3}))
    snapshot = cluster(host("n1", gpus=3), host("n2", gpus=2), levels=LEVELS, running=[held])
    assert run(snapshot).placed[0].assignment == ("n2", "n2", "n1", "n1")
