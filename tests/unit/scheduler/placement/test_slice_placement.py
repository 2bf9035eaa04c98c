"""Slices: every k consecutive main pods share a domain, at several levels at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_scheduler import BlockReason, Node, Role, Slice, Snapshot
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, run

LEVELS = ("block", "rack", "host")
LOST_1 = frozenset({1})
PAIRS = (Slice(level="rack", pods=2),)


def tree(*sizes: int, gpus: int = 1) -> list[Node]:
    """Racks of so many nodes, two racks in each block."""
    results: list[Node] = []
    for rack, size in enumerate(sizes):
        for _ in range(size):
            name = f"n{len(results)}"
            results.append(node(name, f"b{rack // 2}", f"r{rack}", name, gpus=gpus))
    return results


def places(*nodes: Node, **wanted: Any) -> tuple[str, ...]:
    snapshot = cluster(*nodes, levels=LEVELS)
    gang_a = gang("a", **wanted)
    decisions = run(snapshot, gang_a)
    assert violations(snapshot=snapshot, pending=[gang_a], decisions=decisions) == ()
    return decisions.placed[0].assignment if decisions.placed else ()


def test_each_slice_has_a_rack_though_the_pool_has_room_only_across_racks() -> None:
    nodes = tree(3, 3)
    assert places(*nodes, nodes=4, slices=PAIRS) == ("n0", "n1", "n3", "n4")
    assert places(*nodes, nodes=6, slices=PAIRS) == ()
    assert len(places(*nodes, nodes=6)) == 6


def test_a_refusal_for_want_of_whole_slices_says_so() -> None:
    running = [admitted(gang("r"), "n0"), admitted(gang("s"), "n4")]
    snapshot = cluster(*tree(2, 3), levels=LEVELS, running=running)
    blocked = run(snapshot, gang("a", nodes=4, slices=PAIRS)).blocked[0]
    assert blocked.reason is BlockReason.INSUFFICIENT_GPUS
    blocked = run(snapshot, gang("a", nodes=2, slices=PAIRS, required_level="block")).blocked
    assert blocked == ()
    three = gang("a", nodes=3, slices=(Slice(level="rack", pods=3),))
    blocked = run(snapshot, three).blocked[0]
    assert (blocked.reason, blocked.blockers) == (
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
        ("training/s",),
    )
    assert not missing(
        blocked.message, "3 GPUs", "3 pods", "1", "pool h100", "3 of 5", "0", "training/s"
    )


def test_slices_nest() -> None:
    nested = (Slice(level="block", pods=4), Slice(level="rack", pods=2))
    assert places(*tree(3, 3, 2, 2), nodes=8, slices=nested) == (
        *("n0", "n1", "n3", "n4"),
        *("n6", "n7", "n8", "n9"),
    )
    assert places(*tree(3, 1, 2, 2), nodes=8, slices=nested) == ()


def test_slices_of_single_nodes_share_a_node() -> None:
    nodes = [
        replace(each_node, allocatable=replace(each_node.allocatable, gpus=3))
        for each_node in tree(2, 2)
    ]
    paired = (Slice(level="host", pods=2),)
    assert places(*nodes, nodes=6, slices=paired) == ("n0", "n0", "n1", "n1", "n2", "n2")
    assert places(*nodes, nodes=10, slices=paired) == ()
    nameless = [replace(each_node, domains=each_node.domains[:2]) for each_node in nodes[:1]]
    assert places(*nameless, nodes=2, slices=paired) == ()


def test_a_preferred_slice_is_had_where_it_can_be_and_dropped_otherwise() -> None:
    wish = (Slice(level="rack", pods=2, required=False),)
    assert places(*tree(3, 3), nodes=4, slices=wish) == ("n0", "n1", "n3", "n4")
    assert len(places(*tree(3, 3), nodes=6, slices=wish)) == 6


def test_the_broadest_preferred_slice_is_dropped_first() -> None:
    both = (
        Slice(level="block", pods=4, required=False),
        Slice(level="rack", pods=2, required=False),
    )
    assert places(*tree(2, 1, 2), nodes=4, slices=both) == ("n0", "n1", "n3", "n4")


def test_a_slice_that_lost_a_pod_gets_it_back_in_its_own_rack() -> None:
    broken = admitted(
        gang("a", nodes=4, slices=PAIRS), "n0", "gone", "n3", "n4", lost=frozenset({1})
    )
    snapshot = cluster(*tree(3, 3), levels=LEVELS, running=[broken])
    assert run(snapshot).placed[0].assignment == ("n0", "n1", "n3", "n4")
    full = [broken, admitted(gang("r"), "n1"), admitted(gang("s"), "n2")]
    blocked = run(cluster(*tree(3, 3), levels=LEVELS, running=full)).blocked[0]
    assert blocked.reason is BlockReason.TOPOLOGY_DOES_NOT_FIT
    assert blocked.blockers == ("training/r",)


def test_a_lost_pod_of_nested_slices_goes_back_to_the_narrowest() -> None:
    """The other rack of its block has more of the gang's pods, and room."""
    nested = (Slice(level="block", pods=4), Slice(level="rack", pods=2))
    broken = admitted(gang("a", nodes=4, slices=nested), *("n0", "x", "n2", "n3"), lost=LOST_1)
    snapshot = cluster(*tree(2, 3), levels=LEVELS, running=[broken])
    assert run(snapshot).placed[0].assignment == ("n0", "n1", "n2", "n3")


def test_a_lost_pod_stays_in_the_required_rack_though_its_slice_asks_for_a_block_only() -> None:
    blocks = (Slice(level="block", pods=2),)
    gang_a = gang("a", nodes=4, slices=blocks, required_level="rack")
    broken = admitted(gang_a, "n0", "x", "n1", "n2", lost=LOST_1)
    assert run(cluster(*tree(4, 1), levels=LEVELS, running=[broken])).placed[0].replaced == (1,)
    blocked = run(cluster(*tree(3, 1), levels=LEVELS, running=[broken])).blocked[0]
    assert blocked.reason is BlockReason.EXCEEDS_CLUSTER
    displaced = replace(broken, lost=frozenset(), displaced=LOST_1)
    assert run(cluster(*tree(3, 1), levels=LEVELS, running=[displaced])).placed == ()


def test_where_the_rack_of_a_slice_is_not_known_any_more_the_rejection_names_it() -> None:
    blocks = (Slice(level="block", pods=2),)
    gang_a = gang("a", nodes=4, slices=blocks, required_level="rack")
    broken = admitted(gang_a, "bare", "x", "n0", "n1", lost=LOST_1)
    nodes = [*tree(3), node("bare", "b0", "", "bare", gpus=1)]
    blocked = run(cluster(*nodes, levels=LEVELS, running=[broken])).blocked[0]
    assert blocked.reason is BlockReason.NODES_UNAVAILABLE
    assert blocked.message.startswith("must stay in one rack, but no node of its other pods")


def test_lost_pods_of_several_slices_and_a_whole_slice_are_replaced_in_one_decision() -> None:
    gang_a = gang("a", nodes=6, slices=PAIRS)
    broken = admitted(gang_a, "n0", "x", "y", "n3", "z", "z", lost=frozenset({1, 2, 4, 5}))
    snapshot = cluster(*tree(3, 3, 3), levels=LEVELS, running=[broken])
    decisions = run(snapshot)
    assert violations(snapshot=snapshot, pending=[], decisions=decisions) == ()
    assert decisions.placed[0].assignment == ("n0", "n1", "n4", "n3", "n6", "n7")


def test_a_lost_pod_does_not_take_the_room_that_another_slice_needs() -> None:
    """The lost launcher must not go to the one node that the broken slice can use."""
    launcher = Role(name="launcher", pods=1, per_pod=pod(1))
    gang_a = gang("a", nodes=2, slices=PAIRS, roles=(launcher,))
    broken = admitted(gang_a, "x", "n0", "y", lost=frozenset({0, 2}))
    snapshot: Snapshot = cluster(*tree(2, 1), levels=LEVELS, running=[broken])
    assert run(snapshot).placed[0].assignment == ("n2", "n0", "n1")
