"""Slices: every k consecutive main pods in one domain of a level. Several levels nest.

All main pods are equal. So a domain of a slice's level holds as many pods as fit, rounded down to
whole slices, and a wider domain holds the sum over its children. The count is exact for nested
levels, too, because the slice of each level divides the one around it.

Example: slices of 4 in a block and of 2 in a rack. Racks with 3, 3 and 1 slots in one block hold 2,
2 and 0 pods, and the block holds 4.

If only some pods need a node, a slice that already has pods is anchored to their domain. Its other
pods must go there, and take slots from whole slices there and around it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from drumline_scheduler.placement.topology import Counts, TopologyTree

NO_ROOM: Final = -(1 << 40)
"""The slots of a domain that cannot even hold its anchored pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLevel:
    """Every `pods` consecutive main pods in one domain of a depth."""

    depth: int
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Pods that must go into one domain, because the other pods of their slice are there."""

    depth: int
    identity: int
    pods: int


def whole_slices(
    *,
    tree: TopologyTree,
    slots: Sequence[Counts],
    slice_levels: Sequence[SliceLevel],
    anchors: Sequence[Anchor] = (),
) -> list[Counts]:
    """Return the pods that fit in whole slices beside the anchored pods, by depth, then id.

    The number is negative if the anchored pods do not fit.

    Args:
        tree: tree of the pool.
        slots: pods that fit, by depth, then id.
        slice_levels: slices, broadest first.
        anchors: pods to be placed in given domains, broadest first.
    """
    return SliceRooms(tree=tree, slots=slots, slice_levels=slice_levels, anchors=anchors).by_depth


class SliceRooms:
    """The pods that fit in whole slices, and how many more with additional slots.

    Args:
        tree: tree of the pool.
        slots: pods that fit, by depth, then id.
        slice_levels: slices, broadest first.
        anchors: pods to be placed in given domains, broadest first.
    """

    def __init__(
        self,
        *,
        tree: TopologyTree,
        slots: Sequence[Counts],
        slice_levels: Sequence[SliceLevel],
        anchors: Sequence[Anchor] = (),
    ) -> None:
        self._tree = tree
        self._size = size = {each.depth: each.pods for each in reversed(slice_levels)}
        taken: dict[int, list[Anchor]] = defaultdict(list)
        for anchor in anchors:
            taken[anchor.depth].append(anchor)
        self.by_depth = rooms = list(slots)
        """Pods that fit beside the anchored ones, by depth, then id."""
        self._deepest = deepest = max([*size, *taken], default=0)
        self._unrounded: dict[int, Counts] = {}
        """Pods beside the anchored ones before slices are counted, by depth, then id."""
        # From the deepest slice or anchor up: a wider domain holds the sum of whole slices below.
        for depth in range(deepest, -1, -1):
            room = slots[depth] if depth == deepest else _gather(tree, depth, rooms[depth + 1])
            for anchor in taken[depth]:
                room = room.copy()
                room[anchor.identity] -= anchor.pods
            self._unrounded[depth] = room
            room = np.where(room < 0, NO_ROOM, room)
            # Round down, but keep a negative number: it says that the anchored pods do not fit. A
            # domain without the label cannot hold slices.
            if depth in size:
                whole = np.where(room > 0, room // size[depth] * size[depth], room)
                room = np.where(tree.known[depth], whole, np.minimum(whole, 0))
            rooms[depth] = room

    def with_more(self, added: int, *, ordinal: int, depth: int) -> int:
        """Return the pods that fit into the domain of a node with more slots beside the node.

        O(levels).

        Args:
            added: additional slots, in the node's domains of all depths.
            ordinal: the node.
            depth: depth of the domain.
        """
        of, more = self._tree.domain_of, added
        if depth > self._deepest:
            return self.by_depth[depth].item(of[depth][ordinal]) + added
        room = 0
        for level in range(self._deepest, depth - 1, -1):
            here = of[level][ordinal]
            room = self._unrounded[level].item(here) + more
            room = NO_ROOM if room < 0 else room
            if level in self._size:
                room = room // self._size[level] * self._size[level] if room > 0 else room
                room = room if self._tree.known[level][here] else min(room, 0)
            more = room - self.by_depth[level].item(here)
        return room


def confined(
    *,
    tree: TopologyTree,
    depth: int,
    most: Counts,
    rooms: Sequence[Counts],
    slice_levels: Sequence[SliceLevel],
    anchors: Sequence[Anchor],
) -> Counts:
    """Limit the slots of each domain so that pods anchored around the domain still fit.

    The pods go into one domain of `depth`. Pods that are anchored to a wider domain around it may
    use the domain, too, where no other part of the wider domain has slots.

    Example: two racks of a block have 2 slots and 1 slot. With 1 pod anchored to the block, the
    racks hold 2 and 1 other pods. With 2 anchored pods, they hold 1 pod each.

    Args:
        tree: tree of the pool.
        depth: depth of the domains.
        most: slots by domain id, beside the pods that are anchored inside the domain.
        rooms: `whole_slices` with the same anchors.
        slice_levels: slices, broadest first.
        anchors: anchored pods.

    Returns:
        The slots by domain id; negative if the anchored pods do not fit.
    """
    if all(anchor.depth >= depth for anchor in anchors):
        return most
    size = {slice_level.depth: slice_level.pods for slice_level in reversed(slice_levels)}
    first = tree.starts[depth]
    total, limit = most, most
    # Walk outwards. `beside`: slots of the wider domain outside the inner one. `total`: the most
    # that domain and neighbours hold together for anchored and other pods.
    for outer in range(depth - 1, -1, -1):
        around = tree.ids_of[outer][first]
        inner = tree.ids_of[outer + 1][first]
        beside = _gather(tree, outer, rooms[outer + 1])[around] - rooms[outer + 1][inner]
        taken = np.zeros(len(tree.starts[outer]), dtype=np.int64)
        for anchor in anchors:
            if anchor.depth == outer:
                taken[anchor.identity] += anchor.pods
        total = beside + total - taken[around]
        total = np.where(total < 0, NO_ROOM, total)
        if outer in size:
            whole = np.where(total > 0, total // size[outer] * size[outer], total)
            total = np.where(tree.known[outer][around], whole, np.minimum(whole, 0))
        limit = np.minimum(limit, total)
    return limit


def _gather(tree: TopologyTree, depth: int, below: Counts) -> Counts:
    """Return the sums over the children of each domain of a depth."""
    if not tree.nodes:
        return below[:1]
    first = tree.ids_of[depth + 1][tree.starts[depth]]
    return np.add.reduceat(below, first)


def unit(*, slice_levels: Sequence[SliceLevel], depth: int) -> int:
    """Return the number of pods that must stay together in a domain of a depth."""
    return next((slice_level.pods for slice_level in slice_levels if slice_level.depth >= depth), 1)


def anchored(
    *,
    tree: TopologyTree,
    slice_levels: Sequence[SliceLevel],
    required: int,
    kept: Mapping[int, int],
    vacant: Sequence[int],
) -> dict[tuple[int, int] | None, list[int]] | None:
    """Return the vacant ranks by the domain (depth, id) that holds the other pods of their slice.

    This is a domain of the slice's level or of the required level, whichever is narrower. For a
    gang that requires a rack, a slice that asks for a block is in one rack, too.

    The key None stands for slices without any pod. The result is None if the domain of a slice is
    unknown, because its nodes no longer carry the label of that level.

    Args:
        tree: tree of the pool.
        slice_levels: slices, broadest first.
        required: depth of the gang's required level.
        kept: node ordinals by rank, for the pods that keep their node.
        vacant: ranks without a node, ascending.
    """
    if not (kept and slice_levels):
        return {None: list(vacant)}
    narrow = [replace(piece, depth=max(piece.depth, required)) for piece in slice_levels]
    homes = [_homes(tree=tree, slice_level=slice_level, kept=kept) for slice_level in narrow]
    groups: dict[tuple[int, int] | None, list[int]] = defaultdict(list)
    for rank in vacant:
        # The deepest slice with remaining pods decides, and in it the domain with most of them.
        place = None
        for slice_level, home in zip(reversed(narrow), reversed(homes), strict=True):
            near = home.get(rank // slice_level.pods)
            if near is None:
                continue
            known = [(-pods, i) for i, pods in near.items() if tree.known[slice_level.depth][i]]
            if not known:
                return None
            place = (slice_level.depth, min(known)[1])
            break
        groups[place].append(rank)
    return groups


def has_whole_slices(
    *, tree: TopologyTree, slice_levels: Sequence[SliceLevel], ordinals: Sequence[int]
) -> bool:
    """Return whether each slice of main pods on these nodes, by rank, is in one known domain.

    Args:
        tree: domains of the pool.
        slice_levels: required depth and size of slices.
        ordinals: node of each main pod, by rank.
    """
    for slice_level in slice_levels:
        row, known = tree.domain_of[slice_level.depth], tree.known[slice_level.depth]
        for first in range(0, len(ordinals), slice_level.pods):
            ids = {row[ordinal] for ordinal in ordinals[first : first + slice_level.pods]}
            if len(ids) > 1 or not known[ids.pop()]:
                return False
    return True


def _homes(
    *, tree: TopologyTree, slice_level: SliceLevel, kept: Mapping[int, int]
) -> dict[int, Counter[int]]:
    """Return the number of pods that each domain has, by slice."""
    homes: dict[int, Counter[int]] = defaultdict(Counter)
    for rank, ordinal in kept.items():
        homes[rank // slice_level.pods][tree.domain_of[slice_level.depth][ordinal]] += 1
    return homes
