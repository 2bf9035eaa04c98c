"""Pods of several sizes in one domain: exactly which numbers of them fit together.

The frontier of a node or domain gives, for every combination of role pods placed there, the number
of main pods that still fit. A node's is counted. A domain's is the best division of the role pods
among its parts, rounded down to whole slices where a slice level ends. So the frontier of the whole
is exact: if any placement exists, it is found. Equal parts share a frontier, so a pool of few kinds
of nodes costs little. A join looks at every pair of combinations that make up another one. A mix
with more than `MOST_PAIRS` of them has no frontiers: its roles are placed one after another
(`roles_in_order`).

A frontier is a tuple over all combinations, the last role's number changing fastest; it is negative
where a combination does not fit at all.

Example: a role with 1 pod of 2 GPUs, main pods of 2 GPUs. A node with 4 free GPUs has (2, 1): two
main pods without the role pod, one beside it. A node with 1 free GPU has (0, NO_ROOM). Two nodes of
4 have the best of (2 + 2) and of (1 + 2) or (2 + 1): (4, 3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Final

import numpy as np

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.slicing import NO_ROOM, Anchor, SliceLevel
from drumline_scheduler.placement.slots import MOST_AMOUNT, PodShape, SlotIndex
from drumline_scheduler.placement.topology import Counts
from drumline_scheduler.placement.tournament import Tournament, play_again
from drumline_scheduler.work import spend

Frontier = tuple[int, ...]
MOST_PAIRS: Final = 7000
"""Most pairs of combinations in a join. One role of 116 pods, two of 11 and eight of 1 are below
it."""
_AT_ONCE: Final = 1 << 20
"""Numbers in one array of a computation. It bounds memory."""
_MOST_JOINED: Final = 1 << 18
"""Numbers in the known joins of a mix, some 5 MB, above which they are forgotten."""
_MOST_MEMORIES: Final = 4096
"""Entries of a cache above which it is emptied."""


@dataclass(frozen=True, kw_only=True)
class RoleMix:
    """The role pods that are placed together with main pods."""

    requests: tuple[Vector, ...]
    """Requests of one pod, by role."""
    pods: tuple[int, ...]
    """Number of pods, by role."""

    @property
    def pairs(self) -> int:
        """Number of pairs of combinations that make up another one: the steps of a join."""
        return pairs_of(self.pods)

    @property
    def is_searchable(self) -> bool:
        """True if frontiers are small enough to be computed."""
        return self.pairs <= MOST_PAIRS

    @cached_property
    def combinations(self) -> list[tuple[int, ...]]:
        """All combinations of role pods, in the order of a frontier."""
        return list(product(*(range(count + 1) for count in self.pods)))

    @property
    def sums(self) -> tuple[Counts, Counts, Counts]:
        """All pairs of combinations that make up another one.

        Three arrays: the indices of both parts in the order of their sums, and the start of each
        sum.
        """
        return _sums(self.pods)

    @property
    def shifts(self) -> list[tuple[Counts, Counts]]:
        """For each combination, the indices that it can be added to and the indices of the sums."""
        return _shifts(self.pods)

    def join(
        self, pairs: Collection[tuple[Frontier, Frontier]]
    ) -> Mapping[tuple[Frontier, Frontier], Frontier]:
        """Return the frontiers of at least these pairs. O(unknown pairs of parts x `pairs`)."""
        memory = _known_joins(self.pods)
        if len(memory.known) * len(self.combinations) > _MOST_JOINED:
            memory.known = {}  # another thread may still read the old ones
        known = memory.known
        # Known joins count as well: a replay, which knows less, takes as many steps.
        spend(self.pairs * len(pairs))
        missing = [pair for pair in pairs if pair not in known]
        if not missing:
            return known
        first, second, begins = self.sums
        # Chunks bound the memory of the arrays, whatever the number of pairs.
        step = max(1, _AT_ONCE // len(first))
        for at in range(0, len(missing), step):
            chunk = missing[at : at + step]
            left = np.array([part for part, _ in chunk], dtype=np.int64)
            right = np.array([part for _, part in chunk], dtype=np.int64)
            both = left[:, first] + right[:, second]
            best = np.maximum.reduceat(both, begins, axis=1)
            rows: list[list[int]] = np.where(best < 0, NO_ROOM, best).tolist()
            known.update(zip(chunk, map(tuple, rows), strict=True))
        return known

    def fold(self, parts: Sequence[Frontier]) -> Frontier | None:
        """Return the frontier of a whole; None for one without parts."""
        (whole,) = play_again([Tournament(parts)], parts_of=[parts], join=self.join)
        return whole

    def multiple(self, frontier: Frontier, count: int) -> list[Frontier]:
        """Return few frontiers that together are that of `count` equal parts. O(log count)."""
        powers: list[Frontier] = []
        while count:
            if count & 1:
                powers.append(frontier)
            count >>= 1
            if count:
                pair = (frontier, frontier)
                frontier = self.join([pair])[pair]
        return powers

    def node(self, *, shape: PodShape, free: Vector, for_main: bool) -> Frontier:
        """Return the frontier of an eligible node.

        Args:
            shape: requests of one main pod.
            free: free resources of the node.
            for_main: whether main pods may run on the node.
        """
        return self.nodes(shape=shape, kinds=[(free, for_main)])[0]

    def nodes(self, *, shape: PodShape, kinds: Sequence[tuple[Vector, bool]]) -> list[Frontier]:
        """Return the frontiers of eligible nodes.

        Args:
            shape: the main pods.
            kinds: free amounts of a node, and whether main pods may use it.
        """
        counts = np.array(self.combinations, dtype=np.int64)
        requests = amounts(self.requests)
        taken, asked = counts @ requests, (counts > 0).astype(np.int64) @ (requests > 0)
        # Amounts beyond what all pods together could use do not count, so most nodes are equal.
        free = amounts([each for each, _ in kinds])
        most = shape.slots_in_each(free)[:, None] * amounts([shape.request])
        free = np.minimum(free, most + taken.max(axis=0))
        alike = [(*row, main) for row, (_, main) in zip(free.tolist(), kinds, strict=True)]
        first = {key: place for place, key in reversed(list(enumerate(alike)))}
        distinct = list(first.values())
        spend(len(self.combinations) * len(distinct))
        step = max(1, _AT_ONCE // taken.size)
        rows: list[Frontier] = []
        for at in range(0, len(distinct), step):
            chunk = distinct[at : at + step]
            # A role pod does not fit if a resource that it requests would become negative.
            # Resources that it does not request may be over-committed.
            left = free[chunk][:, None, :] - taken
            fits = ~((left < 0) & (asked > 0)).any(axis=2)
            room = shape.slots_in_each(left.reshape(-1, left.shape[2])).reshape(fits.shape)
            room[[not kinds[place][1] for place in chunk]] = 0
            rows += map(tuple, np.where(fits, room, NO_ROOM).tolist())
        # Equal frontiers are one object, which tournaments compare by identity.
        same: dict[Frontier, Frontier] = {}
        of = {key: same.setdefault(row, row) for key, row in zip(first, rows, strict=True)}
        return [of[key] for key in alike]


def pairs_of(pods: Iterable[int]) -> int:
    """Return `RoleMix.pairs`, from the numbers of pods by role."""
    return prod((count + 1) * (count + 2) // 2 for count in pods)


def amounts(vectors: Sequence[Vector]) -> Counts:
    """Return vectors as rows, with amounts of which hundreds can be added."""
    bounded = [
        vector
        if max(vector) <= MOST_AMOUNT and min(vector) >= -MOST_AMOUNT
        else [max(-MOST_AMOUNT, min(MOST_AMOUNT, each)) for each in vector]
        for vector in vectors
    ]
    return np.array(bounded, dtype=np.int64)


@dataclass(slots=True)
class _KnownJoins:
    """The known frontiers of two parts together, for all mixes of some numbers of pods."""

    known: dict[tuple[Frontier, Frontier], Frontier]


@lru_cache(maxsize=16)
def _known_joins(_pods: tuple[int, ...]) -> _KnownJoins:
    """Return what is known of mixes with these numbers of pods, by role."""
    return _KnownJoins({})


@lru_cache(maxsize=64)
def _sums(pods: tuple[int, ...]) -> tuple[Counts, Counts, Counts]:
    """Return `RoleMix.sums`, which depends only on the numbers of pods."""
    totals = firsts = seconds = np.zeros(1, dtype=np.int64)
    for count in pods:
        # All pairs of one role: (total, part), the total changing slowest.
        total = np.repeat(np.arange(count + 1), np.arange(1, count + 2))
        part = np.concatenate([np.arange(each + 1) for each in range(count + 1)])
        width = count + 1
        totals = (totals[:, None] * width + total).ravel()
        firsts = (firsts[:, None] * width + part).ravel()
        seconds = (seconds[:, None] * width + total - part).ravel()
    order = np.lexsort((firsts, totals))
    totals = totals[order]
    return firsts[order], seconds[order], np.flatnonzero(np.diff(totals, prepend=-1))


@lru_cache(maxsize=64)
def _shifts(pods: tuple[int, ...]) -> list[tuple[Counts, Counts]]:
    """Return `RoleMix.shifts`, which depends only on the numbers of pods."""
    first, second, begins = _sums(pods)
    goals = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(first)))
    order = np.argsort(first, kind="stable")
    ends = np.flatnonzero(np.diff(first[order], append=-1)) + 1
    return [(second[part], goals[part]) for part in np.split(order, ends[:-1])]


class Frontiers:
    """The frontiers of all domains for one shape and mix, kept in step with the index.

    Args:
        index: slots of the main pods.
        mix: the role pods.
        slice_levels: slices of the main pods, broadest first.
        anchors: main pods that must be placed in given domains.
    """

    def __init__(
        self,
        *,
        index: SlotIndex,
        mix: RoleMix,
        slice_levels: Sequence[SliceLevel],
        anchors: Sequence[Anchor] = (),
    ) -> None:
        self.mix = mix
        self._index = index
        self._size = {slice_level.depth: slice_level.pods for slice_level in reversed(slice_levels)}
        self._taken = {(anchor.depth, anchor.identity): anchor.pods for anchor in anchors}
        self._nodes: dict[tuple[Vector, bool], Frontier] = {}
        self._closed: Frontier = (0, *(NO_ROOM for _ in mix.combinations[1:]))
        tree = index.tree
        self.by_node: list[Frontier] = [self._closed] * len(tree.nodes)
        self._count(range(len(tree.nodes)))
        self._rows: list[list[Frontier]] = [
            [self._closed] * len(row) for row in tree.starts[: tree.leaf_depth + 1]
        ]
        self._tournaments: list[dict[int, Tournament[Frontier]]] = [{} for _ in self._rows]
        """The parts of each domain, one dictionary for each depth."""
        self._read = index.read
        self._outdated: set[int] = set()
        self._refresh(set(range(len(self._rows[-1]))))

    def frontier(self, depth: int, identity: int) -> Frontier:
        """Return the frontier of a domain. Its last entry is for all role pods together."""
        tree = self._index.tree
        if depth > tree.leaf_depth:
            return self.by_node[tree.span(depth, identity).start] if tree.nodes else self._closed
        return self._rows[depth][identity]

    @property
    def cells(self) -> int:
        """Number of values in memory, beside those of joins."""
        return len(self._closed) * len(self._nodes)

    def anchored_in(self, depth: int, identity: int) -> int:
        """Return the number of anchored main pods that a domain must hold."""
        return self._taken.get((depth, identity), 0)

    def catch_up(self) -> None:
        """Read the changes since the last call. O(changed nodes x their domains' parts)."""
        changed = self._outdated.union(self._index.changed_since(self._read))
        self._read, self._outdated = self._index.read, set()
        if changed:
            self._renew(changed)

    def outdate(self, ordinals: Iterable[int]) -> None:
        """Count some nodes again in the next `catch_up`."""
        self._outdated.update(ordinals)

    def _renew(self, ordinals: Collection[int]) -> None:
        before = {ordinal: self.by_node[ordinal] for ordinal in ordinals}
        self._count(ordinals)
        leaves = self._index.tree.domain_of[self._index.tree.leaf_depth]
        # Only leaves with a changed frontier are folded again.
        dirty = {leaves[i] for i, frontier in before.items() if frontier != self.by_node[i]}
        if dirty:
            self._refresh(dirty)

    def with_more(self, *, depth: int, leaf: int, free: Vector, count: int) -> int:
        """Return the last entry of a leaf domain's ancestor if the leaf domain had more nodes.

        Args:
            depth: depth of the ancestor, at most the leaf depth.
            leaf: id of the leaf domain.
            free: free amounts on each additional node.
            count: number of additional nodes.
        """
        tree = self._index.tree
        node = self.mix.node(shape=self._index.shape, free=free, for_main=True)
        identity, parts = leaf, self._parts(tree.leaf_depth, leaf)
        changed = self._folded(tree.leaf_depth, identity, parts + self.mix.multiple(node, count))
        # Only the ancestors of the leaf change: replace one child at each level on the way up.
        for below in range(tree.leaf_depth, depth, -1):
            identity, child = self._parent(below, identity), identity
            parts = self._parts(below - 1, identity)
            parts[child - tree.children(below - 1, identity).start] = changed
            changed = self._folded(below - 1, identity, parts)
        return changed[-1]

    def _count(self, ordinals: Iterable[int]) -> None:
        """Count what fits on some nodes; equal nodes are counted once."""
        index = self._index
        kinds = {
            ordinal: (index.free[ordinal], index.counted[ordinal])
            for ordinal in ordinals
            if index.eligible[ordinal]
        }
        missing = list(dict.fromkeys(kind for kind in kinds.values() if kind not in self._nodes))
        # Old kinds may never come back, so the cache is emptied rather than searched for them.
        if len(missing) + len(self._nodes) > _MOST_MEMORIES + len(index.tree.nodes):
            self._nodes.clear()
            missing = list(dict.fromkeys(kinds.values()))
        counted = self.mix.nodes(shape=index.shape, kinds=missing) if missing else []
        self._nodes.update(zip(missing, counted, strict=True))
        for ordinal in ordinals:
            kind = kinds.get(ordinal)
            self.by_node[ordinal] = self._closed if kind is None else self._nodes[kind]

    def _refresh(self, dirty: set[int]) -> None:
        """Compute some leaf domains and their ancestors again."""
        # From the leaves up: a domain needs the new frontiers of its children.
        for depth in range(self._index.tree.leaf_depth, -1, -1):
            ids = list(dirty)
            wholes = self._play_again(depth, ids)
            # Equal domains share a frontier, so it is rounded once.
            known: dict[tuple[int, int, bool], Frontier] = {}
            for identity, whole in zip(ids, wholes, strict=True):
                taken = self.anchored_in(depth, identity)
                key = id(whole), taken, bool(self._index.tree.known[depth][identity])
                row = known.get(key)
                if row is None:
                    row = known[key] = self._whole(depth, identity, whole or self._closed)
                self._rows[depth][identity] = row
            if depth:
                dirty = {self._parent(depth, identity) for identity in dirty}

    def _play_again(self, depth: int, ids: Sequence[int]) -> list[Frontier | None]:
        """Return the joined parts of some domains of a depth; None for one without parts."""
        # Parts keep their places, so those that did not change are not joined again.
        of = self._tournaments[depth]
        parts_of = {identity: self._parts(depth, identity) for identity in ids}
        # Most new domains have the same parts as another one, and copy its joins.
        first: dict[tuple[int, ...], int] = {}
        twins: dict[int, int] = {}
        for identity, parts in parts_of.items():
            if identity not in of:
                twin = first.setdefault(tuple(map(id, parts)), identity)
                if twin == identity:
                    of[identity] = Tournament(parts)
                else:
                    twins[identity] = twin
        played = [identity for identity in ids if identity not in twins]
        play_again(
            [of[identity] for identity in played],
            parts_of=[parts_of[identity] for identity in played],
            join=self.mix.join,
        )
        for identity, twin in twins.items():
            of[identity] = of[twin].copy()
        return [of[identity].whole for identity in ids]

    def _folded(self, depth: int, identity: int, parts: Sequence[Frontier]) -> Frontier:
        """Return the frontier of a domain if it had these parts."""
        return self._whole(depth, identity, self.mix.fold(parts) or self._closed)

    def _parts(self, depth: int, identity: int) -> list[Frontier]:
        """Return the frontiers of a domain's nodes or child domains, in their order."""
        tree = self._index.tree
        if depth == tree.leaf_depth:
            span = tree.span(depth, identity)
            return self.by_node[span.start : span.stop]
        children = tree.children(depth, identity)
        return self._rows[depth + 1][children.start : children.stop]

    def _parent(self, depth: int, identity: int) -> int:
        tree = self._index.tree
        return tree.domain_of[depth - 1][tree.span(depth, identity).start] if tree.nodes else 0

    def _whole(self, depth: int, identity: int, frontier: Frontier) -> Frontier:
        taken, size = self._taken.get((depth, identity), 0), self._size.get(depth)
        # Anchored pods use their slots before others. Then the slots are rounded down to whole
        # slices, which need a domain with a known label.
        if taken:
            frontier = tuple(n - taken if n >= taken else NO_ROOM for n in frontier)
        if size is None:
            return frontier
        known = bool(self._index.tree.known[depth][identity])
        return tuple(n if n < 0 else n // size * size if known else 0 for n in frontier)
