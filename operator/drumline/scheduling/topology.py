"""The tree of topology domains of one pool, over nodes that are sorted by their place in it.

Depth 0 is the pool itself, depth d the pool's d-th level, broadest first. Nodes get ordinals in
the order of (path, name), so every domain is one run of ordinals, and pods that are handed out by
ordinal are neighbours at every level at once.

A node without a label sits in a nameless domain of its parent: it can be used when no level
is asked for, but nobody knows whom it is near, so that domain never counts as one domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumline.scheduling.model import Node, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A run of neighbouring nodes."""

    path: tuple[str, ...]
    start: int
    stop: int
    children: range
    """Ids of its domains one depth further down."""

    @property
    def known(self) -> bool:
        """Whether its nodes carry the label of its level (the pool itself is always known)."""
        return not self.path or self.path[-1] != ""

    def known_at(self, depth: int) -> bool:
        """Whether the domain around it at a wider depth is known too: labels may skip a level."""
        return not depth or self.path[depth - 1] != ""

    @property
    def name(self) -> str:
        """The path as people write it."""
        return "/".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All domains of a pool, by depth and id."""

    pool: Pool
    nodes: tuple[Node, ...]
    """By ordinal."""
    domains: tuple[tuple[Domain, ...], ...]
    """By depth, then id in the order of the paths."""
    domain_of: tuple[tuple[int, ...], ...]
    """By depth, then ordinal: the id of the node's domain."""
    leaf_depth: int
    """The deepest depth that still groups nodes; below it every domain is a single node."""

    def depth_of(self, level: str) -> int | None:
        """The depth of a level by name."""
        return self.pool.levels.index(level) + 1 if level in self.pool.levels else None

    def level_name(self, depth: int) -> str | None:
        """The name of a depth; None for the pool itself."""
        return self.pool.levels[depth - 1] if depth else None

    def common(self, ordinals: Sequence[int]) -> tuple[int, Domain]:
        """The narrowest known domain that holds all these nodes, and its depth."""
        first, last = min(ordinals), max(ordinals)
        for depth in range(len(self.pool.levels), 0, -1):
            identity = self.domain_of[depth][first]
            domain = self.domains[depth][identity]
            if identity == self.domain_of[depth][last] and domain.known:
                return depth, domain
        return 0, self.domains[0][0]


def build_tree(*, pool: Pool, nodes: Iterable[Node]) -> Tree:
    """Sort the nodes of a pool into its tree. O(nodes log nodes + nodes x levels)."""
    height = len(pool.levels)
    placed = sorted((_path(node=node, height=height), node.name, node) for node in nodes)
    paths = [path for path, _, _ in placed]
    starts = [_starts(paths=paths, depth=depth) for depth in range(height + 1)]
    domains = tuple(
        _domains_at(depth=depth, paths=paths, starts=starts) for depth in range(height + 1)
    )
    domain_of = tuple(
        tuple(i for i, domain in enumerate(row) for _ in range(domain.start, domain.stop))
        for row in domains
    )
    return Tree(
        pool=pool,
        nodes=tuple(node for _, _, node in placed),
        domains=domains,
        domain_of=domain_of,
        leaf_depth=_leaf_depth(domains),
    )


def _path(*, node: Node, height: int) -> tuple[str, ...]:
    given = node.domains[:height]
    return given + ("",) * (height - len(given))


def _starts(*, paths: list[tuple[str, ...]], depth: int) -> list[int]:
    """Ordinals at which a new domain of this depth begins; the pool itself begins at 0."""
    return [0] + [i for i in range(1, len(paths)) if paths[i][:depth] != paths[i - 1][:depth]]


def _domains_at(
    *, depth: int, paths: list[tuple[str, ...]], starts: list[list[int]]
) -> tuple[Domain, ...]:
    row = starts[depth]
    below = starts[depth + 1] if depth + 1 < len(starts) else []
    rank = {start: identity for identity, start in enumerate(below)}
    stops = [*row[1:], len(paths)]
    return tuple(
        Domain(
            path=paths[start][:depth] if paths else ("",) * depth,
            start=start,
            stop=stop,
            children=range(rank[start], rank.get(stop, len(below))) if below else range(0),
        )
        for start, stop in zip(row, stops, strict=True)
    )


def _leaf_depth(domains: tuple[tuple[Domain, ...], ...]) -> int:
    depth = len(domains) - 1
    while depth and all(d.stop - d.start == 1 for d in domains[depth] if d.known):
        depth -= 1
    return depth
