"""The allocations of a pool's capacity to gangs, and the order in which they would be evicted.

The order is: lowest priority, then most pods in the domain, then uid. It is kept up to date from
its first use on, so a question costs the allocations of the domain and not those of the pool.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import add

from drumline_scheduler.model import Gang
from drumline_scheduler.placement.topology import Domain, TopologyTree

Vector = tuple[int, ...]
EvictionOrder = tuple[int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The pool capacity that a gang holds, without lost pods and nodes that no longer exist."""

    gang: Gang
    places: Mapping[int, int]
    """Pods by node ordinal."""
    amounts: Mapping[int, Vector]
    """Resources that these pods hold, by node ordinal."""

    def pods_in(self, domain: Domain) -> int:
        """Return the number of the gang's pods in a domain."""
        return sum(n for i, n in self.places.items() if domain.start <= i < domain.stop)

    def held_in(self, domain: Domain, resource: int) -> int:
        """Return the amount of a resource that the gang holds in a domain."""
        return sum(
            amount[resource]
            for i, amount in self.amounts.items()
            if domain.start <= i < domain.stop
        )

    def __add__(self, other: Allocation) -> Allocation:
        amounts = dict(self.amounts)
        for ordinal, more in other.amounts.items():
            before = amounts.get(ordinal)
            amounts[ordinal] = tuple(map(add, before, more)) if before else more
        places = dict(self.places)
        for ordinal, pods in other.places.items():
            places[ordinal] = places.get(ordinal, 0) + pods
        return Allocation(gang=other.gang, places=places, amounts=amounts)


class Allocations(dict[str, Allocation]):
    """Allocations by uid."""

    def __init__(
        self, tree: TopologyTree, allocations: Mapping[str, Allocation] | None = None
    ) -> None:
        super().__init__(allocations or {})
        self._tree = tree
        self._ordered: list[EvictionOrder] | None = None
        """All allocations in eviction order. None until the order is needed for the first time."""
        self._leaves: dict[int, set[str]] = defaultdict(set)
        """Uids of gangs with pods in a leaf domain, by leaf domain."""
        self._uids_of: dict[str, set[str]] | None = None
        """Uids by the key of the gang. A deleted job and its successor may share a key."""
        self._before: dict[str, Allocation | None] = {}
        """Allocations at the last `mark`, by uid, for the uids that changed since."""
        self.log: list[str] = []
        """Keys of the gangs whose allocation changed, in the order of the changes."""

    def __setitem__(self, uid: str, allocation: Allocation) -> None:
        before = self.get(uid)
        self.log.append(allocation.gang.key)
        self._before.setdefault(uid, before)
        # The line and the key index exist only after their first use. Most cycles need neither.
        if before is not None and before.gang.key != allocation.gang.key:
            self.log.append(before.gang.key)
        if self._ordered is not None:
            if before is not None:
                self._remove(before)
            self._enter(allocation)
        if self._uids_of is not None:
            self._uids_of[allocation.gang.key].add(uid)
        super().__setitem__(uid, allocation)

    def __delitem__(self, uid: str) -> None:
        before = self[uid]
        self.log.append(before.gang.key)
        self._before.setdefault(uid, before)
        if self._ordered is not None:
            self._remove(before)
        if self._uids_of is not None:
            self._uids_of[before.gang.key].discard(uid)
        super().__delitem__(uid)

    def mark(self) -> None:
        """Remember the allocations for `rewind`."""
        self._before = {}

    def rewind(self) -> None:
        """Restore the allocations at the mark. O(changed allocations)."""
        before, self._before = self._before, {}
        for uid, allocation in before.items():
            if allocation is not None:
                self[uid] = allocation
            elif uid in self:
                del self[uid]

    def for_job(self, key: str) -> list[Allocation]:
        """Return the allocations of the job with this key: its gang, and its residuals."""
        if self._uids_of is None:
            self._uids_of = defaultdict(set)
            for uid, allocation in self.items():
                self._uids_of[allocation.gang.key].add(uid)
        return [self[uid] for uid in sorted(self._uids_of.get(key, ()))]

    def in_eviction_order(self, domain: Domain) -> Iterator[Allocation]:
        """Yield the allocations with pods in a domain, in eviction order."""
        ordered = self._ordered
        if ordered is None:
            ordered = self._ordered = []
            for allocation in self.values():
                self._enter(allocation, sort=False)
            ordered.sort()
        # The line is sorted by pods in the whole pool, so the root domain needs no second sort.
        if not domain.path:
            yield from (self[uid] for _, _, uid in tuple(ordered))
            return
        # A narrower domain: collect the gangs from its leaf domains and sort them by pods inside
        # it.
        leaves = self._tree.domain_of[self._tree.leaf_depth][domain.start : domain.stop]
        uids = {uid for leaf in set(leaves) for uid in self._leaves[leaf]}
        inside = [(self[uid].pods_in(domain), self[uid]) for uid in uids]
        # A domain below the leaf depth is a part of its leaf, so pods are counted inside it.
        inside = [(pods, allocation) for pods, allocation in inside if pods]
        inside.sort(key=lambda entry: (entry[1].gang.priority, -entry[0], entry[1].gang.uid))
        yield from (allocation for _, allocation in inside)

    def _enter(self, allocation: Allocation, *, sort: bool = True) -> None:
        if self._ordered is None or not allocation.places:
            return
        if sort:
            insort(self._ordered, _eviction_order(allocation))
        else:
            self._ordered.append(_eviction_order(allocation))
        row = self._tree.domain_of[self._tree.leaf_depth]
        for ordinal in allocation.places:
            self._leaves[row[ordinal]].add(allocation.gang.uid)

    def _remove(self, allocation: Allocation) -> None:
        if self._ordered is None or not allocation.places:
            return
        # The key is unique because it ends with the uid, so bisection finds the exact entry.
        del self._ordered[bisect_left(self._ordered, _eviction_order(allocation))]
        row = self._tree.domain_of[self._tree.leaf_depth]
        for ordinal in allocation.places:
            self._leaves[row[ordinal]].discard(allocation.gang.uid)


def _eviction_order(allocation: Allocation) -> EvictionOrder:
    return (allocation.gang.priority, -sum(allocation.places.values()), allocation.gang.uid)
