"""Place the roles of a gang one after another if too many kinds of pods make frontiers large.

The roles with the most GPUs come first, then those that request the largest part of any node. The
pods of a role first go where they cost no slots of main pods, then where they cost the fewest. Of
equal nodes, those with pods of the gang come first, then the fullest ones. All domains of a depth
are computed at once, each as if the gang went there.

Nothing is placed where it does not fit. But a gang may be rejected that fits in another way, so its
rejection says that this search is not exact. O(roles x nodes x log nodes) for a depth, whatever the
number of pods.

Example: roles `big` (1 pod of 4 GPUs) and `small` (2 pods of 1 GPU), main pods of 3 GPUs, nodes
with 4, 4 and 3 free GPUs. `big` fills the first node and costs one slot. One pod of `small` takes
the fourth GPU of the second node and costs none. The other pod costs a slot. One slot is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.frontier import amounts
from drumline_scheduler.placement.slicing import NO_ROOM, Anchor, SliceLevel, whole_slices
from drumline_scheduler.placement.slots import SlotIndex
from drumline_scheduler.placement.topology import Counts, Flags
from drumline_scheduler.work import spend


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """Role pods in each domain of a depth."""

    read: int
    """Length of the log that had been read."""
    most: Counts
    """Main pods that fit beside the role pods, by domain id; negative where these do not fit."""
    pods: list[Counts]
    """Pods by role, then ordinal."""


class RolesInOrder:
    """Role pods and the main pods beside them, kept in step with the index.

    Args:
        index: slots of the main pods.
        requests: request of one pod, by role.
        pods: number of pods, by role.
        slice_levels: slices of the main pods, broadest first.
        anchors: main pods that must be placed in given domains.
        beside: ordinals of the gang's other pods.
    """

    def __init__(
        self,
        *,
        index: SlotIndex,
        requests: Sequence[Vector],
        pods: Sequence[int],
        slice_levels: Sequence[SliceLevel],
        anchors: Sequence[Anchor] = (),
        beside: Sequence[int] = (),
    ) -> None:
        self._index = index
        self._bounds = RoleBounds(index=index, requests=requests)
        self._requests = amounts(requests)
        self._pods = pods
        self._slice_levels = slice_levels
        self._anchors = anchors
        self._beside = beside
        self._known: dict[int, _Placed] = {}

    def renew(self) -> None:
        """Forget everything, because a node's value was replaced."""
        self._known.clear()
        self._bounds.renew()

    def most(self, depth: int) -> Counts:
        """Return the main pods that fit beside the role pods, by domain id.

        Negative: roles do not fit.
        """
        return self._at(depth).most

    def nodes(self, *, depth: int, identity: int) -> list[list[int]]:
        """Return the node ordinals by role, in a domain that can hold everything."""
        span = self._index.tree.span(depth, identity)
        return [
            np.repeat(span, pods[span.start : span.stop]).tolist() for pods in self._at(depth).pods
        ]

    def _at(self, depth: int) -> _Placed:
        known = self._known.get(depth)
        if known is None or known.read != self._index.read:
            known = self._known[depth] = self._place(depth)
        return known

    def _place(self, depth: int) -> _Placed:
        index, tree = self._index, self._index.tree
        domains = len(tree.starts[depth])
        pods = [np.zeros(len(tree.nodes), dtype=np.int64) for _ in self._pods]
        spend(len(tree.nodes) * len(self._pods))
        # 1. A quick bound. If no domain passes, the placement is not tried.
        fits = self._bounds.could_hold(pods=self._pods, depth=depth)
        if not fits.any():
            most = np.full(domains, NO_ROOM, dtype=np.int64)
            return _Placed(read=index.read, most=most, pods=pods)
        # 2. Place the roles in all domains at once. Domains of a depth are disjoint, so one array
        # of free amounts serves them all.
        free = index.free_amounts()
        for role in self._order(free):
            pods[role], left = self._fill(role, free=free, depth=depth)
            fits &= left == 0
        # 3. Count the main slots that remain, in whole slices.
        slots = np.where(index.counted, index.shape.slots_in_each(free), 0)
        most = whole_slices(
            tree=tree,
            slots=[tree.sums(each, slots) for each in tree.depths],
            slice_levels=self._slice_levels,
            anchors=self._anchors,
        )[depth]
        return _Placed(read=index.read, most=np.where(fits, most, NO_ROOM), pods=pods)

    def _order(self, free: Counts) -> list[int]:
        """Return the roles that have pods, the largest pods first."""
        whole = np.maximum(free.max(axis=0), 1)
        shares = (self._requests / whole).max(axis=1)
        return sorted(
            (role for role, count in enumerate(self._pods) if count),
            key=lambda role: (-int(self._requests[role, 0]), -float(shares[role]), role),
        )

    def _fill(self, role: int, *, free: Counts, depth: int) -> tuple[Counts, Counts]:
        """Take the slots of a role from the free amounts in each domain of a depth.

        Returns:
            The pods by ordinal, and the number of pods without a slot by domain id.
        """
        index, tree, request = self._index, self._index.tree, self._requests[role]
        of = tree.ids_of[depth]
        left = np.full(len(tree.starts[depth]), self._pods[role], dtype=np.int64)
        pods = np.zeros(len(of), dtype=np.int64)
        for costs_slots in (False, True):
            if not left.any():
                break
            slots = np.where(index.counted, index.shape.slots_in_each(free), 0)
            # First pass: only what main pods leave unused on a node. Second pass: everything.
            main = 0 if costs_slots else slots[:, None] * amounts([index.shape.request])
            room = np.where(index.eligible, _room(free - main, request), 0)
            room = np.minimum(room, left[of])
            if not room.any():
                continue
            after = index.shape.slots_in_each(free - room[:, None] * request)
            # Main slots lost for each role pod on the node, on average.
            cost = np.where(index.counted, slots - after, 0) / np.maximum(room, 1)
            # Order: domain, cost, nodes of the gang, then nodes with few
            # free GPUs and slots.
            order = np.lexsort((slots, np.maximum(free[:, 0], 0), self._away(), cost, of))
            room = room[order]
            before = np.cumsum(room) - room
            # Domains are runs of ordinals, so they begin at the same places in this order.
            before -= before[tree.starts[depth]][of]
            taken = np.zeros(len(of), dtype=np.int64)
            taken[order] = np.clip(left[of] - before, 0, room)
            free -= taken[:, None] * request
            pods += taken
            left -= tree.sums(depth, taken)
        return pods, left

    def _away(self) -> Counts:
        """Return 0 for nodes of the gang's other pods and 1 for other nodes, by ordinal."""
        away = np.ones(len(self._index.tree.nodes), dtype=np.int64)
        away[list(self._beside)] = 0
        return away


class RoleBounds:
    """The domains that may hold role pods, kept in step with the index.

    The check compares the sums of all requests, and each role alone, with what is free.

    Args:
        index: slots of the main pods.
        requests: request of one pod, by role.
    """

    def __init__(self, *, index: SlotIndex, requests: Sequence[Vector]) -> None:
        self._index = index
        self._requests = amounts(requests)
        self._known: dict[Sequence[int], tuple[int, Counts, Counts]] = {}
        """Length of the log, amounts by ordinal and column, and the least sums, by pods."""

    def renew(self) -> None:
        """Forget everything, because a node's value was replaced."""
        self._known.clear()

    def could_hold(self, *, pods: Sequence[int], depth: int) -> Flags:
        """Return whether role pods may fit, by domain id. False is certain, True is not.

        Args:
            pods: number of pods, by role.
            depth: depth of the domains. The index is up to date.
        """
        tree, known = self._index.tree, self._known.get(pods)
        if not tree.nodes:
            return np.zeros(len(tree.starts[depth]), dtype=np.bool_)
        if known is None or known[0] != self._index.read:
            known = self._known[pods] = (self._index.read, *self._counted(pods))
        _, by_node, least = known
        sums = np.add.reduceat(by_node, tree.starts[depth], axis=0)
        return np.logical_and.reduce(sums >= least, axis=1)

    def _counted(self, pods: Sequence[int]) -> tuple[Counts, Counts]:
        """Return a column for each requested resource and each role, and the sums that it needs."""
        # Nodes with equal amounts share a row until the end.
        table, places = self._index.distinct_amounts()
        total = np.asarray(pods, dtype=np.int64) @ self._requests
        axes = total.nonzero()[0]
        columns, least = [np.maximum(table[:, axes], 0)], total[axes].tolist()
        for request, count in zip(self._requests, pods, strict=True):
            if count:
                columns.append(np.minimum(_room(table, request), count)[:, None])
                least.append(count)
        by_node = np.concatenate(columns, axis=1).take(places, axis=0)
        by_node[~np.asarray(self._index.eligible)] = 0
        return by_node, np.array(least, dtype=np.int64)


def _room(free: Counts, request: Counts) -> Counts:
    """Return the number of pods with a request that fit into each row."""
    asked = np.flatnonzero(request)
    if not asked.size:
        return np.full(len(free), 1 << 20, dtype=np.int64)
    return np.maximum((free[:, asked] // request[asked]).min(axis=1), 0)
