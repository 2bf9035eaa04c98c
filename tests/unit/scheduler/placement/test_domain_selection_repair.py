"""Where the lost pods of a gang go."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import Resources, Role, Slice
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, racks, room, run


def test_lost_pods_stay_together_next_to_most_of_the_others() -> None:
    """Rack 0 has three of the others and one place; rack 1 two and two; rack 2 one and two."""
    held = admitted(
        gang("a", nodes=8), *("n0", "n0", "n1", "n2", "n3", "n4", "x", "x"), lost=frozenset({6, 7})
    )
    snapshot = cluster(*racks(count=3), running=[held])
    placed = run(snapshot).placed[0]
    assert placed.assignment[6:] == ("n2", "n3")


def test_a_lost_role_goes_to_a_node_of_its_own_gang() -> None:
    """The other node is the fuller one."""
    gang_a = gang("a", nodes=1, roles=(Role(name="launcher", pods=1, per_pod=pod(0, cpu=1)),))
    held = [
        admitted(gang_a, "gone", "n0", lost=frozenset({0})),
        admitted(gang("r", gpus=2), "n1"),
    ]
    snapshot = cluster(*racks(count=1, gpus=3), running=held)
    assert run(snapshot).placed[0].assignment == ("n0", "n0")


def test_a_slice_that_is_parted_already_is_filled_where_most_of_it_is() -> None:
    four = gang("a", nodes=4, slices=(Slice(level="rack", pods=4),))
    held = admitted(four, "n0", "n2", "n3", "gone", lost=frozenset({3}))
    snapshot = cluster(*racks(), running=[held])
    assert run(snapshot).placed[0].assignment[3] in {"n2", "n3"}


def test_a_repair_goes_on_beside_a_node_that_is_not_known_any_more() -> None:
    held = admitted(gang("a", nodes=3), "n0", "gone", "strange", lost=frozenset({1}))
    placed = run(cluster(*racks(count=1), running=[held])).placed[0]
    assert placed.assignment == ("n0", "n0", "strange")
    assert (placed.level, placed.domain) == ("rack", ("rack-0",))


def test_a_node_with_too_little_of_one_thing_serves_a_role_that_asks_for_none_of_it() -> None:
    """Strangers use more CPU than n0 has; the store asks for GPUs only."""
    roles = (
        Role(name="launcher", pods=1, per_pod=pod(0, cpu=1)),
        Role(name="store", pods=1, per_pod=pod(2)),
    )
    crowded = replace(node("n0", "rack-0"), used=Resources(cpu_millis=65_000))
    other = node("n1", "rack-0", allocatable=room(1))
    placed = run(cluster(crowded, other), gang("a", nodes=1, roles=roles)).placed
    assert [placement.assignment for placement in placed] == [("n1", "n0", "n1")]


def test_a_pod_of_a_broken_slice_leaves_the_rack_to_pods_that_need_two_slots_there() -> None:
    """Position 2 must join position 3 in the block; the positions 0 and 1 need two slots.

    The rack of position 3 has two slots, and another rack of the block has one slot. The pods 0 and
    1 get the slots of the rack, and pod 2 goes to the other rack.
    """
    four = gang("a", nodes=4, gpus=8, slices=(Slice(level="block", pods=2),))
    nodes = [
        node("d0", "b0", "r9", gpus=8, ready=False),
        node("k0", "b0", "r1", gpus=8),
        node("f0", "b0", "r1", gpus=16),
        node("f1", "b0", "r0", gpus=8),
    ]
    held = admitted(four, "d0", "d0", "d0", "k0", lost=frozenset({0, 1, 2}))
    snapshot = cluster(*nodes, levels=("block", "rack"), running=[held])
    placed = run(snapshot).placed[0]
    assert placed.assignment == ("f0", "f0", "f1", "k0")


def test_role_pods_leave_room_for_pods_that_fit_nowhere_else() -> None:
    """The launcher could take the last slot of the block, which pod 3 needs."""
    roles = (Role(name="launcher", pods=1, per_pod=pod(1)),)
    two = gang("a", nodes=2, gpus=1, roles=roles, slices=(Slice(level="block", pods=2),))
    nodes = [
        node("k0", "b0", "r0", gpus=1),
        node("f0", "b0", "r1", gpus=1),
        node("f1", "b1", "r0", gpus=1),
    ]
    held = admitted(two, "gone", "k0", "gone", lost=frozenset({0, 2}))
    snapshot = cluster(*nodes, levels=("block", "rack"), running=[held])
    assert run(snapshot).placed[0].assignment == ("f1", "k0", "f0")


def test_role_pods_leave_slots_for_anchored_pods_at_every_level_below_the_anchor() -> None:
    """The launchers could take the slots of n0, which the anchored pod needs."""
    roles = (Role(name="launcher", pods=2, per_pod=pod(1)),)
    two = gang("g", nodes=2, gpus=2, slices=(Slice(level="zone", pods=2),), roles=roles)
    nodes = [
        node("n0", "z0", "b0", "r0", gpus=4),
        node("n1", "z0", "b0", "r0", gpus=0),
        node("n2", "z0", "b0", "r1", gpus=1),
        node("n3", "z0", "b1", "r2", gpus=1),
    ]
    held = admitted(two, "n0", "n0", "n0", "n0", lost=frozenset({0, 1, 3}))
    snapshot = cluster(*nodes, levels=("zone", "block", "rack"), running=[held])
    assert run(snapshot).placed[0].assignment == ("n2", "n3", "n0", "n0")


def test_pods_of_two_slices_that_share_a_node_are_counted_together() -> None:
    """Two slices lie inside nodes; 3 pods would go to a node with 2 free GPUs."""
    slices = (Slice(level="rack", pods=6), Slice(level="host", pods=2))
    six = gang("g", nodes=6, slices=slices)
    nodes = [node(f"n{i}", f"r{i}", f"h{i}", gpus=5) for i in range(2)]
    held = admitted(six, *["n0"] * 6, lost=frozenset({2, 3, 4}))
    snapshot = cluster(*nodes, levels=("rack", "host"), running=[held])
    decisions = run(snapshot)
    assert decisions.placed == ()
    assert decisions.blocked[0].key == six.key
