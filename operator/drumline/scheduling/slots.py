"""How many pods of one shape each node and each domain has room for, kept up to date by the log.

A shape is a pod's request plus the nodes that are open to it. All gangs of one shape share one
index: it is built once per cycle in O(nodes), and a placement costs the nodes it touched times the
number of levels. Nodes with equal free amounts share one division.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from drumline.scheduling.eligibility import Admission
from drumline.scheduling.view import PoolView, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What makes two pods equal to the placement."""

    request: Vector
    admission: Admission

    def slots_in(self, free: Vector) -> int:
        """How many such pods fit beside each other into `free`."""
        rooms = [have // need for have, need in zip(free, self.request, strict=True) if need]
        return max(0, min(rooms))


Bucket = tuple[int, int]
"""Free GPUs and slots: nodes that are equal for best fit."""


class SlotIndex:
    """Slots and free GPUs by node and by domain, for one shape."""

    def __init__(self, *, view: PoolView, shape: Shape) -> None:
        tree = view.tree
        self.tree = tree
        self._shape = shape
        self._view = view
        self._memo: dict[Vector, Bucket] = {}
        self._read = len(view.log)
        self.open = [shape.admission.refusal(node) is None for node in tree.nodes]
        self.cells: list[Bucket] = [
            self._cell(free) if is_open else (0, 0)
            for free, is_open in zip(view.free, self.open, strict=True)
        ]
        self.slots = [[0] * len(row) for row in tree.domains]
        self.gpus = [[0] * len(row) for row in tree.domains]
        self._sum_up()
        self.buckets: list[dict[Bucket, list[int]]] = [{} for _ in tree.domains[tree.leaf_depth]]
        """By leaf domain: ordinals in rising order of the nodes with room, by free GPUs, slots."""
        leaf_of = tree.domain_of[tree.leaf_depth]
        for ordinal, cell in enumerate(self.cells):
            if cell[1]:
                self.buckets[leaf_of[ordinal]].setdefault(cell, []).append(ordinal)

    def catch_up(self) -> None:
        """Read what changed since the last look. O(changed nodes x levels)."""
        log = self._view.log
        if self._read == len(log):
            return
        for ordinal in set(log[self._read :]):
            if self.open[ordinal]:
                self._update(ordinal)
        self._read = len(log)

    def _cell(self, free: Vector) -> Bucket:
        cell = self._memo.get(free)
        if cell is None:
            cell = (max(0, free[0]), self._shape.slots_in(free))
            self._memo[free] = cell
        return cell

    def _sum_up(self) -> None:
        for depth, row in enumerate(self.tree.domains):
            for identity, domain in enumerate(row):
                cells = self.cells[domain.start : domain.stop]
                self.gpus[depth][identity] = sum(gpus for gpus, _ in cells)
                self.slots[depth][identity] = sum(slots for _, slots in cells)

    def _update(self, ordinal: int) -> None:
        old, new = self.cells[ordinal], self._cell(self._view.free[ordinal])
        if old == new:
            return
        self.cells[ordinal] = new
        gpus, slots = new[0] - old[0], new[1] - old[1]
        for depth, row in enumerate(self.tree.domain_of):
            identity = row[ordinal]
            self.gpus[depth][identity] += gpus
            self.slots[depth][identity] += slots
        buckets = self.buckets[self.tree.domain_of[self.tree.leaf_depth][ordinal]]
        if old[1]:
            _leave(buckets=buckets, cell=old, ordinal=ordinal)
        if new[1]:
            insort(buckets.setdefault(new, []), ordinal)


def _leave(*, buckets: dict[Bucket, list[int]], cell: Bucket, ordinal: int) -> None:
    members = buckets[cell]
    del members[bisect_left(members, ordinal)]
    if not members:
        del buckets[cell]


def domain_slots(
    *, view: PoolView, shape: Shape, amounts: Sequence[Vector], depth: int, everywhere: bool
) -> list[int]:
    """Slots by domain of one depth in a picture other than the present one. O(nodes).

    Args:
        view: the pool.
        shape: the pods to be counted.
        amounts: what is to be taken as free, by ordinal.
        depth: of the domains that are summed up.
        everywhere: also count nodes that are out of service or closed to the shape.
    """
    memo: dict[Vector, int] = {}
    totals = [0] * len(view.tree.domains[depth])
    for ordinal, identity in enumerate(view.tree.domain_of[depth]):
        if everywhere or shape.admission.refusal(view.tree.nodes[ordinal]) is None:
            free = amounts[ordinal]
            if free not in memo:
                memo[free] = shape.slots_in(free)
            totals[identity] += memo[free]
    return totals
