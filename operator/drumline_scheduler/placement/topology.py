"""The topology tree of a pool, over nodes that are sorted by domain.

Depth 0 is the pool, depth d its d-th level, broadest first. Nodes get ordinals in the order of
(path, name). So every domain is a range of ordinals, and pods that are placed in the order of
ordinals are neighbours at every level.

A node without a level's label is in a nameless domain of its parent. It can be used where no level
is required, but its neighbours are not known: that domain never counts as one domain.

Domains are rows of arrays, by depth and id, in the order of their paths. A `Domain` is made from
them where a single one is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from drumline_scheduler.model import Node, Pool
from drumline_scheduler.placement.eligibility import LabelTable, out_of_service

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A run of neighbouring nodes."""

    path: tuple[str, ...]
    start: int
    stop: int
    children: range
    """Ids of its domains one depth further down."""

    @property
    def name(self) -> str:
        """The path with slashes."""
        return "/".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopologyTree:
    """All domains of a pool, by depth and id."""

    pool: Pool
    nodes: list[Node]
    """Nodes by ordinal. A node may be replaced by a new value in the same domains."""
    starts: tuple[Counts, ...]
    """Ordinal of the first node of each domain, by depth, then id."""
    known: tuple[Flags, ...]
    """True if the nodes of a domain carry the label of its level, by depth, then id."""
    domain_of: tuple[list[int], ...]
    """Id of the node's domain, by depth, then ordinal."""
    ids_of: tuple[Counts, ...]
    """These ids as arrays, by depth."""
    leaf_depth: int
    """The deepest depth that still groups nodes. Below it every domain is a single node."""
    suspicion: dict[int, int]
    """`Node.suspicion` of the nodes that have any, by ordinal."""
    hanging: dict[int, tuple[str, ...]]
    """`Node.hanging` of the nodes that have any, by ordinal."""
    _usable: dict[tuple[int, int], Flags] = field(default_factory=dict[tuple[int, int], Flags])
    _usable_ids: dict[tuple[int, int], Counts] = field(
        default_factory=dict[tuple[int, int], Counts]
    )
    _depths: dict[str, int] = field(default_factory=dict[str, int])
    """Depths of all levels by name, once one was needed."""
    _bounds: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """`starts` as integers and the number of nodes, by depth."""
    _labels: list[LabelTable] = field(default_factory=list[LabelTable])
    """The table of the nodes' labels, once it was needed."""
    _in_service: list[int] = field(default_factory=list[int])
    """`in_service`, once it was needed."""

    @property
    def labels(self) -> LabelTable:
        """The labels of the nodes."""
        if not self._labels:
            self._labels.append(LabelTable(self.nodes))
        return self._labels[0]

    @property
    def in_service(self) -> int:
        """The nodes that are in service: bit i stands for the node with ordinal i."""
        if not self._in_service:
            self._in_service.append(
                sum(1 << i for i, node in enumerate(self.nodes) if out_of_service(node) is None)
            )
        return self._in_service[0]

    def renew(self, ordinal: int, node: Node) -> None:
        """Replace a node by its new value, in the same domains."""
        self._in_service.clear()
        if node.labels != self.nodes[ordinal].labels:
            self._labels.clear()
        self.nodes[ordinal] = node
        self.suspicion.pop(ordinal, None)
        if node.suspicion:
            self.suspicion[ordinal] = node.suspicion
        self.hanging.pop(ordinal, None)
        if node.hanging:
            self.hanging[ordinal] = node.hanging

    @property
    def depths(self) -> range:
        """All depths, the pool's first."""
        return range(len(self.starts))

    def depth_of(self, level: str) -> int | None:
        """Return the depth of a level by name; None if the pool does not have it."""
        if not self._depths:
            levels = self.pool.levels
            self._depths.update(zip(reversed(levels), range(len(levels), 0, -1), strict=True))
        return self._depths.get(level)

    def level_name(self, depth: int) -> str | None:
        """Return the name of a depth; None for the pool itself."""
        return self.pool.levels[depth - 1] if depth else None

    def span(self, depth: int, identity: int) -> range:
        """Return the ordinals of a domain."""
        bounds = self._bounds.get(depth)
        if bounds is None:
            bounds = self._bounds[depth] = [*self.starts[depth].tolist(), len(self.nodes)]
        return range(bounds[identity], bounds[identity + 1])

    def children(self, depth: int, identity: int) -> range:
        """Return the ids of a domain's children, one depth further down."""
        if depth + 1 == len(self.starts) or not self.nodes:
            return range(0)
        below, span = self.domain_of[depth + 1], self.span(depth, identity)
        return range(below[span.start], below[span.stop - 1] + 1)

    def domain(self, depth: int, identity: int) -> Domain:
        """Return a domain as a value."""
        span = self.span(depth, identity)
        path = _path(self.nodes[span.start], height=len(self.pool.levels)) if self.nodes else ()
        return Domain(
            path=path[:depth],
            start=span.start,
            stop=span.stop,
            children=self.children(depth, identity),
        )

    def usable(self, depth: int, *, within: int) -> Flags:
        """Return which domains of a depth are known, with a known ancestor at a wider depth."""
        usable = self._usable.get((depth, within))
        if usable is None:
            usable = self.known[depth]
            if 0 < within < depth and self.nodes:
                around = self.ids_of[within][self.starts[depth]]
                usable = usable & self.known[within][around]
            self._usable[depth, within] = usable
        return usable

    def usable_ids(self, depth: int, *, within: int) -> Counts:
        """Return the ids of the usable domains of a depth, ascending. The array is shared."""
        ids = self._usable_ids.get((depth, within))
        if ids is None:
            ids = self._usable_ids[depth, within] = np.flatnonzero(
                self.usable(depth, within=within)
            )
        return ids

    def sums(self, depth: int, by_node: Counts) -> Counts:
        """Return the sums over the nodes of each domain of a depth."""
        if not self.nodes:
            return np.zeros(1, dtype=np.int64)
        return np.add.reduceat(by_node, self.starts[depth])

    def sums_of_rows(self, by_node: Counts) -> list[Counts]:
        """Return the sums of several rows over the nodes of each domain, by depth."""
        if not self.nodes:
            return [np.zeros((len(by_node), 1), dtype=np.int64) for _ in self.starts]
        return [np.add.reduceat(by_node, starts, axis=1) for starts in self.starts]

    def suspicion_in(self, depth: int, ids: Counts) -> Counts:
        """Return the total suspicion of the nodes in some domains of a depth."""
        if not self.suspicion:
            return np.zeros_like(ids)
        by_node = np.zeros(len(self.nodes), dtype=np.int64)
        by_node[list(self.suspicion)] = list(self.suspicion.values())
        return self.sums(depth, by_node)[ids]

    def common(self, ordinals: Sequence[int]) -> tuple[int, Domain]:
        """Return the narrowest known domain that holds all these nodes, and its depth."""
        first, last = min(ordinals), max(ordinals)
        # Domains are ranges of ordinals, so the first and the last node decide for all.
        for depth in range(len(self.pool.levels), 0, -1):
            identity = self.domain_of[depth][first]
            if identity == self.domain_of[depth][last] and self.known[depth][identity]:
                return depth, self.domain(depth, identity)
        return 0, self.domain(0, 0)


def build_tree(*, pool: Pool, nodes: Iterable[Node]) -> TopologyTree:
    """Sort the nodes of a pool into its tree. O(nodes log nodes + nodes x levels)."""
    height = len(pool.levels)
    # Sorting by path and name makes every domain a range of ordinals.
    keyed = [(_path(node, height=height), node.name, node) for node in nodes]
    keyed.sort(key=_by_place)
    paths = [path for path, _, _ in keyed]
    starts = tuple(_starts(paths=paths, height=height))
    sizes = tuple(np.diff(row, append=len(paths)) for row in starts)
    ids_of = tuple(np.repeat(np.arange(len(size)), size) for size in sizes)
    # A nameless domain is not known: its nodes may be anywhere in the network.
    known = [np.ones(1, dtype=np.bool_)]
    for depth in range(1, height + 1):
        begins: list[int] = starts[depth].tolist() if paths else []
        known.append(np.array([paths[i][depth - 1] != "" for i in begins] or [False]))
    return TopologyTree(
        pool=pool,
        nodes=[node for _, _, node in keyed],
        starts=starts,
        known=tuple(known),
        domain_of=tuple(each.tolist() for each in ids_of),
        ids_of=ids_of,
        leaf_depth=_leaf_depth(known=known, sizes=sizes),
        suspicion={i: node.suspicion for i, (_, _, node) in enumerate(keyed) if node.suspicion},
        hanging={i: node.hanging for i, (_, _, node) in enumerate(keyed) if node.hanging},
    )


def _by_place(entry: tuple[tuple[str, ...], str, Node]) -> tuple[tuple[str, ...], str]:
    return entry[:2]


def _path(node: Node, *, height: int) -> tuple[str, ...]:
    given = node.domains
    if len(given) == height:
        return given
    return given[:height] + ("",) * (height - len(given))


def _starts(*, paths: list[tuple[str, ...]], height: int) -> Iterable[Counts]:
    """Yield for each depth the ordinals at which a new domain begins.

    A domain that begins at a wider depth begins at all deeper depths, too.
    """
    fresh = np.zeros(max(len(paths), 1), dtype=np.bool_)
    fresh[0] = True
    yield np.flatnonzero(fresh)
    columns = list(zip(*paths, strict=True)) if len(paths) > 1 else []
    for depth in range(1, height + 1):
        if columns:
            fresh[1:] |= np.array([here != before for before, here in pairwise(columns[depth - 1])])
        yield np.flatnonzero(fresh)


def _leaf_depth(*, known: Sequence[Flags], sizes: Sequence[Counts]) -> int:
    depth = len(known) - 1
    # Levels with one node for each labelled domain, such as `host`, group nothing.
    while depth and bool((sizes[depth][known[depth]] == 1).all()):
        depth -= 1
    return depth
