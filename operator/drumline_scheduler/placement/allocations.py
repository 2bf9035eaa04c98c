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
    """What a gang holds of a pool, without lost pods and nodes that are gone."""

    gang: Gang
    places: Mapping[int, int]
    """Pods by node ordinal."""
    amounts: Mapping[int, Vector]
    """What these pods hold, by node ordinal."""

    def pods_in(self, domain: Domain) -> int:
        """How many of its pods are in a domain."""
        return sum(n for i, n in self.places.items() if domain.start <= i < domain.stop)

    def held_in(self, domain: Domain, resource: int) -> int:
        """How much of a resource it holds in a domain."""
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
        self._line: list[EvictionOrder] | None = None
        """All of them, in eviction order."""
        self._leaves: dict[int, set[str]] = defaultdict(set)
        """By leaf domain: the uids with pods there."""
        self._uids_of: dict[str, set[str]] | None = None
        """By the gang's key; a deleted job may share it with its successor."""
        self._before: dict[str, Allocation | None] = {}
        """By uid, of all that changed since `mark`: the allocation at the mark."""

    def __setitem__(self, uid: str, allocation: Allocation) -> None:
        before = self.get(uid)
        self._before.setdefault(uid, before)
        if self._line is not None:
            if before is not None:
                self._remove(before)
            self._enter(allocation)
        if self._uids_of is not None:
            self._uids_of[allocation.gang.key].add(uid)
        super().__setitem__(uid, allocation)

    def __delitem__(self, uid: str) -> None:
        before = self[uid]
        self._before.setdefault(uid, before)
        if self._line is not None:
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

    def of_key(self, key: str) -> list[Allocation]:
        """The allocations of the job with this key: of its gang, and what it holds beside."""
        if self._uids_of is None:
            self._uids_of = defaultdict(set)
            for uid, allocation in self.items():
                self._uids_of[allocation.gang.key].add(uid)
        return [self[uid] for uid in sorted(self._uids_of.get(key, ()))]

    def in_eviction_order(self, domain: Domain) -> Iterator[Allocation]:
        """The allocations with pods in a domain, in eviction order."""
        ordered = self._line
        if ordered is None:
            ordered = self._line = []
            for allocation in self.values():
                self._enter(allocation, sort=False)
            ordered.sort()
        if not domain.path:
            yield from (self[uid] for _, _, uid in tuple(ordered))
            return
        leaves = self._tree.domain_of[self._tree.leaf_depth][domain.start : domain.stop]
        uids = {uid for leaf in set(leaves) for uid in self._leaves[leaf]}
        inside = [(self[uid].pods_in(domain), self[uid]) for uid in uids]
        inside = [(pods, allocation) for pods, allocation in inside if pods]
        inside.sort(key=lambda entry: (entry[1].gang.priority, -entry[0], entry[1].gang.uid))
        yield from (allocation for _, allocation in inside)

    def _enter(self, allocation: Allocation, *, sort: bool = True) -> None:
        if self._line is None or not allocation.places:
            return
        if sort:
            insort(self._line, _eviction_order(allocation))
        else:
            self._line.append(_eviction_order(allocation))
        row = self._tree.domain_of[self._tree.leaf_depth]
        for ordinal in allocation.places:
            self._leaves[row[ordinal]].add(allocation.gang.uid)

    def _remove(self, allocation: Allocation) -> None:
        if self._line is None or not allocation.places:
            return
        del self._line[bisect_left(self._line, _eviction_order(allocation))]
        row = self._tree.domain_of[self._tree.leaf_depth]
        for ordinal in allocation.places:
            self._leaves[row[ordinal]].discard(allocation.gang.uid)


def _eviction_order(allocation: Allocation) -> EvictionOrder:
    return (allocation.gang.priority, -sum(allocation.places.values()), allocation.gang.uid)
