"""What counts as the one domain of a slice."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from drumline_scheduler import Pool, Role, Slice
from drumline_scheduler.placement.slicing import Anchor, SliceLevel, SliceRooms, whole_slices
from drumline_scheduler.placement.topology import build_tree
from tests.unit.scheduler.builders import cluster, gang, node, pod, run


@pytest.mark.parametrize("seed", range(200))
def test_rooms_with_more_slots_are_those_of_a_new_count(seed: int) -> None:
    """Nested slices, anchors and nodes without labels, drawn at random."""
    dice = Random(seed)
    labels = [
        tuple(f"{part}{dice.randrange(2)}" if dice.random() < 0.9 else "" for part in "br")
        for _ in range(dice.randint(1, 6))
    ]
    nodes = [node(f"n{index}", *place) for index, place in enumerate(labels)]
    tree = build_tree(pool=Pool(name="h100", levels=("block", "rack")), nodes=nodes)
    by_node = np.array([dice.randrange(5) for _ in nodes])
    outer = SliceLevel(depth=1, pods=dice.choice([2, 4]))
    levels = dice.choice([(), (outer,), (outer, SliceLevel(depth=2, pods=2))])
    drawn = (dice.randrange(3), dice.randrange(6), dice.randrange(1, 4))
    anchors = [
        Anchor(depth=drawn[0], identity=drawn[1] % len(tree.starts[drawn[0]]), pods=drawn[2])
    ]
    anchors = anchors if dice.random() < 0.5 else []
    slots = [tree.sums(depth, by_node) for depth in tree.depths]
    rooms = SliceRooms(tree=tree, slots=slots, slice_levels=levels, anchors=anchors)
    for ordinal in range(len(nodes)):
        added = dice.randrange(6)
        by_node[ordinal] += added
        more = [tree.sums(depth, by_node) for depth in tree.depths]
        counted = whole_slices(tree=tree, slots=more, slice_levels=levels, anchors=anchors)
        for depth in tree.depths:
            expected = counted[depth][tree.domain_of[depth][ordinal]]
            assert rooms.with_more(added, ordinal=ordinal, depth=depth) == expected
        by_node[ordinal] -= added


def test_nodes_of_no_known_rack_hold_no_slice() -> None:
    """Beside the rack's pair there is room for two pods more, but nobody knows where that is."""
    nodes = (*(node(f"n{i}", "rack-0", gpus=1) for i in range(2)), node("n2", gpus=2))
    pairs = (Slice(level="rack", pods=2),)
    assert run(cluster(*nodes), gang("a", nodes=4, slices=pairs)).placed == ()
    assert run(cluster(*nodes), gang("a", nodes=2, slices=pairs)).placed[0].domain == ("rack-0",)
    assert len(run(cluster(*nodes), gang("a", nodes=4)).placed) == 1


def test_kept_places_that_would_part_a_slice_are_not_taken() -> None:
    nodes = [node(f"n{i}", f"rack-{i // 2}", gpus=1) for i in range(4)]
    pairs = (Slice(level="rack", pods=2),)
    for kept, taken in ((("n0", "n2"), ("n0", "n1")), (("n2", "n3"), ("n2", "n3"))):
        gang_a = gang("a", nodes=2, slices=pairs, nominated=kept, nominated_pool="h100")
        assert run(cluster(*nodes), gang_a).placed[0].assignment == taken


def test_beside_roles_they_hold_none_either() -> None:
    """A known rack with room for one slice, and two places of no rack with room for one each."""
    nodes = (
        node("n0", "block-0", "rack-0", gpus=2),
        node("n1", "block-0", gpus=2),
        node("n2", "block-1", gpus=2),
    )
    gang_a = gang(
        "a",
        nodes=4,
        slices=(Slice(level="rack", pods=2),),
        roles=(Role(name="launcher", pods=1, per_pod=pod(0, cpu=1)),),
    )
    assert run(cluster(*nodes, levels=("block", "rack")), gang_a).placed == ()
