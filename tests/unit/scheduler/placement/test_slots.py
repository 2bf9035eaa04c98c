"""An index that read every change knows what a new one would count."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import Pool
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.distinct_capacities import DistinctCapacities
from drumline_scheduler.placement.eligibility import node_filter_of
from drumline_scheduler.placement.frontier import Frontiers, RoleMix
from drumline_scheduler.placement.slicing import SliceLevel
from drumline_scheduler.placement.slots import PodShape, SlotIndex
from drumline_scheduler.placement.topology import build_tree
from tests.unit.scheduler.builders import gang, node

POOL = Pool(name="h100", levels=("rack", "host"))
NODES = [
    *(node(f"n{i}", f"r{i // 3}", f"n{i}") for i in range(6)),
    *(node(f"n{i}", f"r{i // 3}") for i in range(6, 9)),
    *(node(f"n{i}", "", f"n{i}") for i in range(9, 11)),
]
"""Two racks of three hosts, one whose hosts nobody knows, and two hosts of no rack."""
PAIRS = (SliceLevel(depth=1, pods=2),)
OPEN = node_filter_of(gang("a"))
PLAIN = PodShape(request=(1, 2), node_filter=OPEN)
SHAPES = {
    "plain": PLAIN,
    "no GPUs": replace(PLAIN, request=(0, 1)),
    "pairs on a host": replace(PLAIN, grain=2, grain_depths=(2,)),
    "pairs on a host of a rack": replace(PLAIN, grain=2, grain_depths=(1, 2)),
}
MIX = RoleMix(requests=((0, 3), (2, 0)), pods=(1, 2))
STEPS = 25


class World:
    """Free amounts that change, nodes that are closed and opened, and an index that is told."""

    def __init__(self, *, seed: int, shape: PodShape, all_nodes: bool = False) -> None:
        self._random = Random(seed)
        self._shape = shape
        self._all_nodes = all_nodes
        self._tree = build_tree(pool=POOL, nodes=NODES)
        self._free: list[Vector] = [self._amount() for _ in NODES]
        self._log: list[int] = []
        self.index = self.fresh()
        self.frontiers = Frontiers(index=self.index, mix=MIX, slice_levels=PAIRS)

    def fresh(self) -> SlotIndex:
        return SlotIndex(
            tree=self._tree,
            shape=self._shape,
            free=self._free,
            log=self._log,
            all_nodes=self._all_nodes,
        )

    def change(self) -> None:
        ordinal = self._random.randrange(len(NODES))
        if self._random.random() < 0.5:
            self._free[ordinal] = self._amount()
            self._log.append(ordinal)
        else:
            first = self._tree.nodes[ordinal]
            self._tree.nodes[ordinal] = replace(first, unschedulable=not first.unschedulable)
            self.index.renew({ordinal})
            self.frontiers.outdate({ordinal})
        self.index.catch_up()
        self.frontiers.catch_up()

    def counted(self, index: SlotIndex) -> object:
        """All that anybody asks an index for."""
        leaves = range(len(self._tree.starts[self._tree.leaf_depth]))
        return (
            [row.tolist() for row in (*index.slots, *index.gpus, *index.slots_in_slices(PAIRS))],
            index.cells,
            [dict(index.bucket(leaf)) for leaf in leaves],
            [index.slots_of(ordinal, (4, 4)) for ordinal in range(len(NODES))],
        )

    def folded(self, frontiers: Frontiers) -> object:
        return [
            [frontiers.frontier(depth, i) for i in range(len(row))]
            for depth, row in enumerate(self._tree.starts)
        ]

    def _amount(self) -> Vector:
        return (self._random.randint(-1, 5), self._random.randint(-1, 9))


@pytest.mark.parametrize("all_nodes", [False, True], ids=["open nodes", "all nodes"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_whatever_changes_the_index_and_the_frontiers_are_as_new(
    shape: PodShape, *, all_nodes: bool
) -> None:
    world = World(seed=1, shape=shape, all_nodes=all_nodes)
    for _ in range(STEPS):
        world.change()
        fresh = world.fresh()
        assert world.counted(world.index) == world.counted(fresh)
        rebuilt = Frontiers(index=fresh, mix=MIX, slice_levels=PAIRS)
        assert world.folded(world.frontiers) == world.folded(rebuilt)


def test_changes_of_a_whole_pool_at_once_are_counted_too() -> None:
    tree = build_tree(pool=POOL, nodes=[node(f"n{i:03}", f"r{i // 60}") for i in range(300)])
    free: list[Vector] = [(i % 5, 9) for i in range(300)]
    log: list[int] = []
    index = SlotIndex(tree=tree, shape=PLAIN, free=free, log=log)
    before = [dict(index.bucket(leaf)) for leaf in range(5)]
    free[:] = [(have + 1, 9) for have, _ in free]
    log += range(300)
    index.catch_up()
    fresh = SlotIndex(tree=tree, shape=PLAIN, free=free)
    after = [dict(index.bucket(leaf)) for leaf in range(5)]
    assert after == [dict(fresh.bucket(leaf)) for leaf in range(5)] != before
    assert [row.tolist() for row in index.slots] == [row.tolist() for row in fresh.slots]


def test_many_nodes_that_close_at_once_are_counted_too() -> None:
    nodes = [node(f"n{i:03}", f"r{i // 60}") for i in range(300)]
    tree = build_tree(pool=POOL, nodes=nodes)
    free: list[Vector] = [(i % 5, 9) for i in range(300)]
    index = SlotIndex(tree=tree, shape=PLAIN, free=free)
    before = [dict(index.bucket(leaf)) for leaf in range(5)]
    closed = range(0, 300, 3)
    for ordinal in closed:
        tree.nodes[ordinal] = replace(tree.nodes[ordinal], unschedulable=True)
    index.renew(closed)
    fresh = SlotIndex(tree=tree, shape=PLAIN, free=free)
    after = [dict(index.bucket(leaf)) for leaf in range(5)]
    assert after == [dict(fresh.bucket(leaf)) for leaf in range(5)] != before
    assert [row.tolist() for row in index.slots] == [row.tolist() for row in fresh.slots]


def test_a_placement_in_one_domain_makes_no_object_for_each_vector_of_the_pool() -> None:
    size = 2000
    tree = build_tree(pool=POOL, nodes=[node(f"n{i:04}", f"r{i // 4}") for i in range(size)])
    free: list[Vector] = [(1000 + i, 1000 + i) for i in range(size)]
    distinct = DistinctCapacities(amounts=free)
    before = sys.getallocatedblocks()
    index = SlotIndex(tree=tree, shape=PLAIN, free=free, distinct=distinct)
    assert len(index.bucket(3)) == 4
    assert sys.getallocatedblocks() - before < size // 4


def test_closed_nodes_and_those_without_the_labels_of_a_slice_have_no_room_for_it() -> None:
    shape = SHAPES["pairs on a host of a rack"]
    nodes = [replace(each_node, unschedulable=each_node.name == "n0") for each_node in NODES]
    tree = build_tree(pool=POOL, nodes=nodes)
    index = SlotIndex(tree=tree, shape=shape, free=[(3, 9)] * len(nodes))
    room = {item.name: index.slots_of(i, (3, 9)) for i, item in enumerate(tree.nodes)}
    assert room == {
        each_node.name: 2 if each_node.name in {"n1", "n2", "n3", "n4", "n5"} else 0
        for each_node in NODES
    }
