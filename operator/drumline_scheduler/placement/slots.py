"""Count the pods of one shape that fit on each node and in each domain.

A shape is a pod's request, the filter for its nodes, and the grain: the number of its pods that
must share a node. Gangs of one shape share an index, which the log of the view keeps up to date. It
is built in O(nodes), and nodes with equal free amounts share one division. A placement costs the
nodes it touches times the number of levels.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from drumline_scheduler.model import Node
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.distinct_capacities import MOST, DistinctCapacities
from drumline_scheduler.placement.eligibility import Ineligibility, LabelVerdicts, NodeFilter
from drumline_scheduler.placement.slicing import SliceLevel, whole_slices
from drumline_scheduler.placement.topology import Counts, TopologyTree

Bucket = tuple[int, int]
"""Free GPUs and slots. Nodes of one bucket are equal for best fit."""

_PLENTY: Final = 1 << 20
"""Slots of a node for pods that request nothing."""
MOST_AMOUNT: Final = 1 << 52
"""Bound for amounts of which hundreds are added, so that sums fit into 64 bits."""
_MANY: Final = 32
"""Number of changed nodes above which everything may be counted again instead of node by node."""
_MANY_OF: Final = 16
"""Changes of at most 1 / `_MANY_OF` of the nodes are counted node by node."""
_MANY_RENEWED: Final = 32
"""Like `_MANY`, for nodes whose values were replaced. Each of them costs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """The properties that make two pods equal for the placement."""

    request: Vector
    node_filter: NodeFilter
    grain: int = 1
    """Pods that must share a node: slices of a level at which every domain is one node."""
    grain_depths: tuple[int, ...] = ()
    """Depths whose labels a node must carry for the grain."""

    def slots_in(self, free: Vector) -> int:
        """Return the number of such pods that fit into `free`, in whole grains."""
        rooms = [have // need for have, need in zip(free, self.request, strict=True) if need]
        return max(0, min((_PLENTY, *rooms))) // self.grain * self.grain

    def slots_in_each(self, table: Counts) -> Counts:
        """Return `slots_in` for many vectors, one in each row."""
        pods = np.full(len(table), _PLENTY, dtype=np.int64)
        for column, need in enumerate(self.request):
            if need:
                np.minimum(pods, table[:, column] // min(need, MOST), out=pods)
        return np.maximum(pods, 0) // self.grain * self.grain

    def in_grain(self, *, tree: TopologyTree, eligible: list[bool]) -> list[bool]:
        """Return which of the eligible nodes carry the labels that the grain needs."""
        counted = eligible
        for depth in self.grain_depths:
            known, ids = tree.known[depth], tree.domain_of[depth]
            counted = [yes and bool(known[i]) for yes, i in zip(counted, ids, strict=True)]
        return counted


class SlotIndex:
    """Slots and free GPUs by node and by domain, for one shape.

    Args:
        tree: tree of the pool.
        shape: the pods that are counted.
        free: free amounts, by ordinal.
        log: ordinals where `free` changed. `catch_up` reads entries that are appended later.
        distinct: the distinct vectors of `free`, if they are known already.
        all_nodes: also count nodes that are out of service or ineligible for the shape.
        eligible: eligible nodes by ordinal, if they are known already.
    """

    def __init__(
        self,
        *,
        tree: TopologyTree,
        shape: PodShape,
        free: Sequence[Vector],
        log: Sequence[int] = (),
        distinct: DistinctCapacities | None = None,
        all_nodes: bool = False,
        eligible: list[bool] | None = None,
    ) -> None:
        self.tree = tree
        self.shape = shape
        self.free = free
        self.read = len(log)
        """Length of the log that has been read."""
        self._log = log
        self._distinct = distinct or DistinctCapacities(amounts=free, log=log)
        self._all_nodes = all_nodes
        self._memo: dict[Vector, Bucket] = {}
        if all_nodes:
            eligible = [True] * len(tree.nodes)
        if eligible is None:
            eligible = shape.node_filter.eligible(tree.nodes, table=tree.labels)
        self.eligible = eligible
        """True if the node passes the filter, by ordinal."""
        self.counted = shape.in_grain(tree=tree, eligible=self.eligible)
        """True if the node is eligible and carries the labels that the grain needs, by ordinal."""
        self._kinds: Counts = np.zeros((2, 0), dtype=np.int64)
        """Free GPUs and slots of each distinct vector at the last count, a column each."""
        self._places: Counts = np.zeros(0, dtype=np.int64)
        """Column of `_kinds` of each node at the last count, by ordinal."""
        self._cells: list[Bucket] | None = None
        """`cells`, once they were needed. Most shapes are placed or rejected without them."""
        self.slots: list[Counts] = []
        """Slots of each domain, by depth, then id."""
        self.gpus: list[Counts] = []
        """Free GPUs on the counted nodes of each domain, by depth, then id."""
        self._buckets: dict[int, dict[Bucket, list[int]]] = {}
        self._whole: dict[tuple[SliceLevel, ...], list[Counts]] = {}
        self._ineligible: dict[int, Ineligibility | None] = {}
        """Reasons why nodes are ineligible, as far as they were asked for, by ordinal."""
        self._labelled: LabelVerdicts | None = None
        self._recount()

    @property
    def cells(self) -> list[Bucket]:
        """Bucket of each node, by ordinal."""
        if self._cells is None:
            # Nodes of one bucket share its tuple.
            kinds = _columns(self._kinds)
            self._cells = list(map(kinds.__getitem__, self._places.tolist()))
        return self._cells

    def cell(self, ordinal: int) -> Bucket:
        """Return the bucket of one node."""
        if self._cells is None:
            gpus, slots = self._kinds[:, self._places[ordinal]].tolist()
            return gpus, slots
        return self._cells[ordinal]

    def _cells_of(self, span: range) -> list[Bucket]:
        # A placement needs one domain. Buckets of all vectors for each shape would be quadratic.
        if self._cells is not None:
            return self._cells[span.start : span.stop]
        return _columns(self._kinds[:, self._places[span.start : span.stop]])

    def ineligibility(self, ordinal: int) -> Ineligibility | None:
        """Return why a node is ineligible; None if it is eligible. O(1) when it is known."""
        if self.eligible[ordinal]:
            return None
        if ordinal not in self._ineligible:
            self._ineligible[ordinal] = self.ineligibility_of(self.tree.nodes[ordinal], ordinal)
        return self._ineligible[ordinal]

    def ineligibility_of(self, node: Node, ordinal: int) -> Ineligibility | None:
        """Return why a node, or another value of it with the same labels, is ineligible."""
        return self.shape.node_filter.ineligibility(node, labels=self.labelled, ordinal=ordinal)

    @property
    def labelled(self) -> LabelVerdicts:
        """The nodes whose labels suit the shape's filter."""
        if self._labelled is None:
            self._labelled = self.shape.node_filter.labelled(self.tree.labels)
        return self._labelled

    def catch_up(self) -> None:
        """Read the changes since the last call. O(changed nodes x levels)."""
        log = self._log
        if self.read == len(log):
            return
        # Above a bound, one vectorized count of all nodes is cheaper than single updates.
        is_long = len(log) - self.read > max(_MANY, len(self.counted))
        changed = () if is_long else {i for i in log[self.read :] if self.counted[i]}
        self.read = len(log)
        self._whole.clear()
        if is_long or len(changed) > max(_MANY, len(self.counted) // _MANY_OF):
            self._buckets.clear()
            self._recount()
            return
        free, cells, known = self.free, self.cells, self._memo
        for ordinal in changed:
            # A change that was undone again leaves the bucket as it was.
            if known.get(free[ordinal]) != cells[ordinal]:
                self._update(ordinal)

    def renew(self, ordinals: Collection[int]) -> None:
        """Filter and count some nodes again after their values were replaced."""
        self._labelled = None
        self._whole.clear()
        is_many = len(ordinals) > _MANY_RENEWED
        for ordinal in ordinals:
            self._ineligible.pop(ordinal, None)
            node = self.tree.nodes[ordinal]
            self.eligible[ordinal] = (
                self._all_nodes or self.shape.node_filter.ineligibility(node) is None
            )
            known = all(
                self.tree.known[depth][self.tree.domain_of[depth][ordinal]]
                for depth in self.shape.grain_depths
            )
            self.counted[ordinal] = self.eligible[ordinal] and known
            if not is_many:
                self._update(ordinal)
        if is_many:
            self._buckets.clear()
            self._recount()

    def slots_of(self, ordinal: int, free: Vector) -> int:
        """Return the number of pods that would fit on a node with this much free."""
        return self._cell(free)[1] if self.counted[ordinal] else 0

    def free_amounts(self) -> Counts:
        """Return the free amounts by ordinal, as a new array with bounded amounts."""
        table, places = self.distinct_amounts()
        return table.take(places, axis=0)

    def distinct_amounts(self) -> tuple[Counts, Counts]:
        """Return the distinct free amounts as rows, bounded, and the row of each node."""
        self._distinct.catch_up()
        table = np.minimum(np.maximum(self._distinct.table, -MOST_AMOUNT), MOST_AMOUNT)
        return table, self._distinct.places

    def changed_since(self, read: int) -> Collection[int]:
        """Return the ordinals that may have changed since `read`, an earlier length of the log."""
        nodes = range(len(self.counted))
        return nodes if self.read - read > len(nodes) else set(self._log[read : self.read])

    def slots_in_slices(self, slice_levels: tuple[SliceLevel, ...]) -> Sequence[Counts]:
        """Return the pods that fit in whole slices, by depth, then id."""
        if not slice_levels:
            return self.slots
        slots = self._whole.get(slice_levels)
        if slots is None:
            slots = whole_slices(tree=self.tree, slots=self.slots, slice_levels=slice_levels)
            self._whole[slice_levels] = slots
        return slots

    def bucket(self, leaf: int) -> dict[Bucket, list[int]]:
        """Return the nodes of a leaf domain with slots, ascending, by free GPUs and slots."""
        buckets = self._buckets.get(leaf)
        if buckets is None:
            buckets = defaultdict[Bucket, list[int]](list)
            span = self.tree.span(self.tree.leaf_depth, leaf)
            for ordinal, cell in zip(span, self._cells_of(span), strict=True):
                if cell[1]:
                    buckets[cell].append(ordinal)
            self._buckets[leaf] = buckets
        return buckets

    def _cell(self, free: Vector) -> Bucket:
        cell = self._memo.get(free)
        if cell is None:
            cell = (max(0, free[0]), self.shape.slots_in(free))
            self._memo[free] = cell
        return cell

    def _recount(self) -> None:
        """Count everything again; each distinct vector is divided once. O(nodes)."""
        self._distinct.catch_up()
        table, places = self._distinct.table, self._distinct.places
        closed = len(table)
        # An extra row of zeros stands for nodes that are not counted.
        places = places.copy() if all(self.counted) else np.where(self.counted, places, closed)
        kinds = np.zeros((2, closed + 1), dtype=np.int64)
        if closed:
            np.maximum(table[:, 0], 0, out=kinds[0, :closed])
            kinds[1, :closed] = self.shape.slots_in_each(table)
        self._kinds, self._places, self._cells = kinds, places, None
        sums = self.tree.sums_of_rows(kinds.take(places, axis=1))
        self.gpus, self.slots = [gpus for gpus, _ in sums], [slots for _, slots in sums]

    def _update(self, ordinal: int) -> None:
        old = self.cells[ordinal]
        new = self._cell(self.free[ordinal]) if self.counted[ordinal] else (0, 0)
        if old == new:
            return
        self.cells[ordinal] = new
        # Add the difference to the node's domain at every depth.
        gpus, slots = new[0] - old[0], new[1] - old[1]
        for depth, row in enumerate(self.tree.domain_of):
            identity = row[ordinal]
            self.gpus[depth][identity] += gpus
            self.slots[depth][identity] += slots
        # Buckets of a leaf exist only after a placement there asked for them.
        buckets = self._buckets.get(self.tree.domain_of[self.tree.leaf_depth][ordinal])
        if buckets is None:
            return
        if old[1]:
            _leave(buckets=buckets, cell=old, ordinal=ordinal)
        if new[1]:
            insort(buckets.setdefault(new, []), ordinal)


def _columns(table: Counts) -> list[Bucket]:
    gpus, slots = table.tolist()
    return list(zip(gpus, slots, strict=True))


def _leave(*, buckets: dict[Bucket, list[int]], cell: Bucket, ordinal: int) -> None:
    members = buckets[cell]
    del members[bisect_left(members, ordinal)]
    if not members:
        del buckets[cell]
