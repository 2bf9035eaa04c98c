"""Quota along a tree of queues: GPUs of one pool that each queue may use, lend and borrow.

Every queue is a branch. Its parent is the cohort that it shares with its siblings. A queue that has
children is two branches: the cohort, and a member of it that holds the queue's own jobs. So every
job belongs to a leaf, and all leaves are treated in the same way.

* quota of a leaf: its nominal quota; of a cohort: the quota that its members lend to it.
* kept: the part of a branch's quota that its lending limit holds back.
* usage of a cohort: the usage of its members above the quota that they keep.
* borrowed: usage above quota. A branch borrows at most its borrowing limit, a root nothing.

Example: queues a (nominal 4, lends at most 1) and b (nominal 4) in cohort c. a keeps 3, so the
quota of c is 1 + 4 = 5. b may use up to 5 GPUs, which is 4 of its own and 1 of a's. If a uses 4,
the usage of c is 1, and b may use 4.

A queue whose parent does not exist, or that is its own ancestor, has no cohort. All walks are
O(depth of the tree). The terms are those of Kueue's cohorts, where `kept` is the guaranteed quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from drumline_scheduler.model import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A node of the queue tree."""

    name: str
    path: tuple[int, ...]
    """Ids from this branch up to its root."""
    nominal: Mapping[str, int]
    borrowing_limit: Mapping[str, int]
    lending_limit: Mapping[str, int]
    weight: float
    """Weight among its siblings under fair sharing; 1 for a cohort's own jobs."""


class QueueTree:
    """The branches of all queues. Parents have lower ids than their children."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.queues = named = {queue.name: queue for queue in queues}
        parents = parents_of(named)
        depths = depths_of(parents)
        cohorts = {parent for parent in parents.values() if parent is not None}
        self.branches: list[Branch] = []
        self.leaf_of: dict[str, int] = {}
        """The branch that holds the jobs of a queue, by name of the queue."""
        above: dict[str, tuple[int, ...]] = {}
        # Parents first, so that `above` has the path of a queue's parent.
        for name in sorted(named, key=lambda name: (depths[name], name)):
            parent = parents[name]
            upward = above[parent] if parent is not None else ()
            queue = named[name]
            # A queue with children becomes two branches. The inner one has
            # its nominal quota and its jobs.
            if name in cohorts:
                above[name] = self._grow(queue=queue, upward=upward, cohort=True)
                self._grow(queue=queue, upward=above[name], inner=True)
            else:
                self._grow(queue=queue, upward=upward)
            self.leaf_of[name] = len(self.branches) - 1
        self.is_flat = not cohorts
        """True if no queue can borrow."""

    @cached_property
    def lasting(self) -> QueueTree:
        """Tree with the quotas that the queues have while every node is healthy."""
        if all(queue.lasting is queue.nominal for queue in self.queues.values()):
            return self
        return QueueTree(replace(each, nominal=each.lasting) for each in self.queues.values())

    def _grow(
        self, *, queue: Queue, upward: tuple[int, ...], cohort: bool = False, inner: bool = False
    ) -> tuple[int, ...]:
        path = (len(self.branches), *upward)
        self.branches.append(
            Branch(
                name=queue.name,
                path=path,
                nominal={} if cohort else queue.nominal,
                borrowing_limit=(not inner and queue.borrowing_limit) or {},
                lending_limit=(not inner and queue.lending_limit) or {},
                weight=1.0 if inner else queue.weight,
            )
        )
        return path


class CohortQuota:
    """Quota and usage of every branch, in GPUs of one pool."""

    def __init__(self, *, tree: QueueTree, pool: str) -> None:
        branches = tree.branches
        self.paths = [branch.path for branch in branches]
        self.quota = [branch.nominal.get(pool, 0) for branch in branches]
        self.kept = [0] * len(branches)
        self.limit = [branch.borrowing_limit.get(pool) for branch in branches]
        self.lent = [branch.lending_limit.get(pool) for branch in branches]
        self.usage = [0] * len(branches)
        # A parent's quota is complete only after all its children have lent to it.
        for identity in reversed(range(len(branches))):  # children before their parents
            if len(self.paths[identity]) > 1:
                self.kept[identity] = self._keeps(branch=identity, quota=self.quota[identity])
                parent = self.paths[identity][1]
                self.quota[parent] += self.quota[identity] - self.kept[identity]

    def copy(self) -> CohortQuota:
        """Return the same quota with a usage that can be changed separately."""
        clone = copy(self)
        clone.usage = list(self.usage)
        return clone

    def add(self, *, leaf: int, gpus: int) -> None:
        """Add GPUs (a negative number removes them) to the usage of a leaf and its ancestors."""
        for branch in self.paths[leaf]:
            before = self.usage[branch]
            self.usage[branch] = before + gpus
            # Only usage above the kept quota counts in the parent.
            kept = self.kept[branch]
            gpus = max(0, before + gpus - kept) - max(0, before - kept)

    def room(self, leaf: int) -> int:
        """Return the GPUs that a leaf may still take.

        The number is negative if its quota was lowered below usage.

        It may always take the quota that its lending limit keeps for it.
        """
        # From the root down: each branch has its kept quota and its part
        # of what the parent has free.
        *below, root = self.paths[leaf]
        room = self.quota[root] - self.usage[root]
        for branch in reversed(below):
            room = self._room_below(branch=branch, above=room, usage=self.usage[branch])
        return room

    def most(self, leaf: int) -> int:
        """Return the GPUs that a leaf could hold if all other leaves were empty."""
        *below, root = self.paths[leaf]
        most = self.quota[root]
        for branch in reversed(below):
            most = self._room_below(branch=branch, above=most, usage=0)
        return most

    def borrowed(self, branch: int) -> int:
        """Return the GPUs that a branch holds above its quota."""
        return max(0, self.usage[branch] - self.quota[branch])

    def above_with(self, *, leaf: int, gpus: int) -> tuple[bool, ...]:
        """Return which branches would borrow with `gpus` more, from the root to the leaf.

        A root never borrows. A gang that does not fit there has to wait.
        """
        *below, _ = self.paths[leaf]
        above: list[bool] = []
        for branch in below:
            before, kept = self.usage[branch], self.kept[branch]
            above.append(before + gpus > self.quota[branch])
            gpus = max(0, before + gpus - kept) - max(0, before - kept)
        return (False, *reversed(above))

    def shortfall(self, *, leaf: int, gpus: int) -> int:
        """Return the smallest increase of the leaf's quota with which it may take `gpus` more."""
        # Double the increase until it is enough, then bisect. Limits above may hide a part of an
        # increase, so the answer cannot be computed directly.
        low, high = 0, max(1, gpus)
        while self._room_with(leaf=leaf, raised=high) < gpus:
            low, high = high, 2 * high
        while low < high:
            middle = (low + high) // 2
            if self._room_with(leaf=leaf, raised=middle) < gpus:
                low = middle + 1
            else:
                high = middle
        return low

    def _room_with(self, *, leaf: int, raised: int) -> int:
        """Return `room` if the leaf's quota were larger by `raised`."""
        more, less = raised, 0
        stations: list[tuple[int, int, int, int]] = []
        # Upwards: a larger quota raises what the branch keeps, lends, and counts as usage above.
        for branch in self.paths[leaf]:
            quota, usage = self.quota[branch] + more, self.usage[branch] - less
            kept = self._keeps(branch=branch, quota=quota)
            stations.append((branch, quota, kept, usage))
            more -= kept - self.kept[branch]
            less = max(0, self.usage[branch] - self.kept[branch]) - max(0, usage - kept)
        _, quota, _, usage = stations.pop()
        room = quota - usage
        # Downwards: like `room`, with the changed figures.
        for branch, quota, kept, usage in reversed(stations):
            room = _room_below(
                quota=quota, kept=kept, limit=self.limit[branch], usage=usage, above=room
            )
        return room

    def _keeps(self, *, branch: int, quota: int) -> int:
        """Return the part of its quota that a branch never lends."""
        lent = self.lent[branch]
        return 0 if lent is None else max(0, quota - lent)

    def _room_below(self, *, branch: int, above: int, usage: int) -> int:
        return _room_below(
            quota=self.quota[branch],
            kept=self.kept[branch],
            limit=self.limit[branch],
            usage=usage,
            above=above,
        )


def _room_below(*, quota: int, kept: int, limit: int | None, usage: int, above: int) -> int:
    """Return the GPUs that a branch may still take if its parent may take `above`."""
    if limit is not None:
        above = min(above, quota - kept + limit - max(0, usage - kept))
    return max(0, kept - usage) + max(0, above)


def parents_of(queues: Mapping[str, Queue]) -> dict[str, str | None]:
    """Return each queue's parent, if it exists and the queue is not its own ancestor. O(queues)."""
    circles: set[str] = set()
    done: set[str] = set()
    for name in queues:
        line: dict[str, None] = {}
        above: str | None = name
        # Follow the parents until a known queue, or one of this line: then the line is a circle.
        while above is not None and above in queues and above not in done and above not in line:
            line[above] = None
            above = queues[above].parent
        if above in line:  # the part of the line from there on leads back to it
            names = list(line)
            circles.update(names[names.index(above) :])
        done.update(line)
    return {
        name: queue.parent if queue.parent in queues and name not in circles else None
        for name, queue in queues.items()
    }


def depths_of(parents: Mapping[str, str | None]) -> dict[str, int]:
    """Return the number of queues above each queue. O(queues)."""
    depths: dict[str, int] = {}
    for name in parents:
        line: list[str] = []
        above: str | None = name
        while above is not None and above not in depths:
            line.append(above)
            above = parents[above]
        depth = -1 if above is None else depths[above]
        for place, each in enumerate(reversed(line), start=1):
            depths[each] = depth + place
    return depths
