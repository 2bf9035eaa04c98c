"""Pods of several sizes in one domain: exactly which numbers of them fit together.

The frontier of a node or domain gives, for every combination of role pods placed there, the number
of main pods that still fit. A node's is counted. A domain's is the best division of the role pods
among its parts, rounded down to whole slices where a slice level ends. So the frontier of the whole
is exact: if any placement exists, it is found. Equal parts share a frontier, so a pool of few kinds
of nodes costs little.

A frontier is a tuple over all combinations, the last role's number changing fastest; it is negative
where a combination does not fit at all.

Example: a role with 1 pod of 2 GPUs, main pods of 2 GPUs. A node with 4 free GPUs has (2, 1): two
main pods without the role pod, one beside it. A node with 1 free GPU has (0, NO_ROOM). Two nodes of
4 have the best of (2 + 2) and of (1 + 2) or (2 + 1): (4, 3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import mul, sub
from types import MappingProxyType
from typing import Final

import numpy as np

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.slicing import NO_ROOM, Anchor, SliceLevel
from drumline_scheduler.placement.slots import PodShape, SlotIndex
from drumline_scheduler.placement.topology import Counts

Frontier = tuple[int, ...]
_NOTHING: Final[Mapping[int, tuple[Vector, int]]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class RoleMix:
    """The role pods that are placed together with main pods."""

    requests: tuple[Vector, ...]
    """By role."""
    pods: tuple[int, ...]
    """By role: how many."""

    @cached_property
    def combinations(self) -> list[tuple[int, ...]]:
        """All combinations of role pods, in the order of a frontier."""
        return list(product(*(range(count + 1) for count in self.pods)))

    @cached_property
    def sums(self) -> tuple[Counts, Counts, Counts]:
        """All pairs of combinations that make up another one.

        The places of both, in the order of their sums, and where each sum begins.
        """
        place = {combination: i for i, combination in enumerate(self.combinations)}
        pairs = sorted(
            (place[total], place[part], place[tuple(map(sub, total, part))])
            for total in self.combinations
            for part in product(*(range(count + 1) for count in total))
        )
        table = np.array(pairs, dtype=np.int64)
        return table[:, 1], table[:, 2], np.flatnonzero(np.diff(table[:, 0], prepend=-1))

    @cached_property
    def shifts(self) -> list[tuple[Counts, Counts]]:
        """By combination: the places of all to which it can be added, and of what comes out."""
        first, second, begins = self.sums
        goals = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(first)))
        return [
            (second[first == part], goals[first == part]) for part in range(len(self.combinations))
        ]

    def joined(self, first_part: Frontier, second_part: Frontier) -> Frontier:
        """The frontier of two parts together. O(combinations squared)."""
        first, second, begins = self.sums
        both = np.array(first_part)[first] + np.array(second_part)[second]
        best = np.maximum.reduceat(both, begins)
        return tuple(np.maximum(best, NO_ROOM).tolist())

    def node(self, *, shape: PodShape, free: Vector, for_main: bool) -> Frontier:
        """The frontier of an eligible node."""
        lefts = [self._left(combination, free) for combination in self.combinations]
        return tuple(
            NO_ROOM if left is None else shape.slots_in(left) if for_main else 0 for left in lefts
        )

    def _left(self, combination: tuple[int, ...], free: Vector) -> Vector | None:
        """What is free beside some role pods; None: they do not fit."""
        for request, pods in zip(self.requests, combination, strict=True):
            if pods:
                free = tuple(map(sub, free, map(mul, request, (pods,) * len(request))))
        asked = [request for request, n in zip(self.requests, combination, strict=True) if n]
        if any(have < 0 and any(request[i] for request in asked) for i, have in enumerate(free)):
            return None
        return free


class Frontiers:
    """The frontiers of all domains for one shape and mix, in step with the index.

    Args:
        index: of the main pods.
        mix: the role pods.
        cuts: slices of the main pods, broadest first.
        anchors: main pods to be placed in given domains.
        more: by leaf domain, the free amounts and the number of additional nodes.
    """

    def __init__(
        self,
        *,
        index: SlotIndex,
        mix: RoleMix,
        slice_levels: Sequence[SliceLevel],
        anchors: Sequence[Anchor] = (),
        more: Mapping[int, tuple[Vector, int]] = _NOTHING,
    ) -> None:
        self.mix = mix
        self._more = more
        self._index = index
        self._size = {slice_level.depth: slice_level.pods for slice_level in reversed(slice_levels)}
        self._taken = {(anchor.depth, anchor.identity): anchor.pods for anchor in anchors}
        self._nodes: dict[tuple[Vector, bool], Frontier] = {}
        self._pairs: dict[tuple[Frontier, Frontier], Frontier] = {}
        self._closed = (0, *(NO_ROOM for _ in mix.combinations[1:]))
        tree = index.tree
        self.by_node = [self._node(ordinal) for ordinal in range(len(tree.nodes))]
        self._rows: list[list[Frontier]] = [
            [self._closed] * len(row) for row in tree.starts[: tree.leaf_depth + 1]
        ]
        self._read = index.read
        self._refresh(set(range(len(self._rows[-1]))))

    def of(self, depth: int, identity: int) -> Frontier:
        """The frontier of a domain; its last entry is for all role pods together."""
        tree = self._index.tree
        if depth > tree.leaf_depth:
            return self.by_node[tree.span(depth, identity).start] if tree.nodes else self._closed
        return self._rows[depth][identity]

    def anchored_in(self, depth: int, identity: int) -> int:
        """How many anchored main pods a domain has to hold."""
        return self._taken.get((depth, identity), 0)

    def catch_up(self) -> None:
        """Read what changed since the last look. O(changed nodes x their domains' parts)."""
        changed = self._index.changed_since(self._read)
        self._read = self._index.read
        if changed:
            self.renew(changed)

    def renew(self, ordinals: Collection[int]) -> None:
        """Count some nodes again."""
        for ordinal in ordinals:
            self.by_node[ordinal] = self._node(ordinal)
        leaves = self._index.tree.domain_of[self._index.tree.leaf_depth]
        self._refresh({leaves[ordinal] for ordinal in ordinals})

    def _node(self, ordinal: int) -> Frontier:
        index = self._index
        if not index.eligible[ordinal]:
            return self._closed
        key = (index.free[ordinal], index.counted[ordinal])
        frontier = self._nodes.get(key)
        if frontier is None:
            frontier = self.mix.node(shape=index.shape, free=key[0], for_main=key[1])
            self._nodes[key] = frontier
        return frontier

    def _refresh(self, dirty: set[int]) -> None:
        """Compute some leaf domains and their ancestors again."""
        tree = self._index.tree
        for depth in range(tree.leaf_depth, -1, -1):
            for identity in dirty:
                if depth == tree.leaf_depth:
                    span = tree.span(depth, identity)
                    parts = self.by_node[span.start : span.stop] + self._added_nodes(identity)
                else:
                    children = tree.children(depth, identity)
                    parts = self._rows[depth + 1][children.start : children.stop]
                self._rows[depth][identity] = self._whole(depth, identity, self._fold(parts))
            if depth:
                dirty = {self._parent(depth, identity) for identity in dirty}

    def _added_nodes(self, leaf: int) -> list[Frontier]:
        free, count = self._more.get(leaf, ((), 0))
        if not count:
            return []
        return [self.mix.node(shape=self._index.shape, free=free, for_main=True)] * count

    def _parent(self, depth: int, identity: int) -> int:
        tree = self._index.tree
        return tree.domain_of[depth - 1][tree.span(depth, identity).start] if tree.nodes else 0

    def _fold(self, parts: list[Frontier]) -> Frontier:
        """Join pairs of pairs, so that equal neighbours are joined once."""
        while len(parts) > 1:
            pairs = list(zip(parts[::2], parts[1::2], strict=False))
            parts = [self._joined(pair) for pair in pairs] + parts[2 * len(pairs) :]
        return parts[0] if parts else self._closed

    def _joined(self, pair: tuple[Frontier, Frontier]) -> Frontier:
        frontier = self._pairs.get(pair)
        if frontier is None:
            frontier = self.mix.joined(*pair)
            self._pairs[pair] = frontier
        return frontier

    def _whole(self, depth: int, identity: int, frontier: Frontier) -> Frontier:
        taken, size = self._taken.get((depth, identity), 0), self._size.get(depth)
        if taken:
            frontier = tuple(n - taken if n >= taken else NO_ROOM for n in frontier)
        if size is None:
            return frontier
        known = bool(self._index.tree.known[depth][identity])
        return tuple(n if n < 0 else n // size * size if known else 0 for n in frontier)
