"""Who holds places of a pool, and in which order they would be asked to leave a domain.

Lowest priority first, then whoever has most pods there, then by uid. The order is kept up to date
from the first time somebody asks, so that one answer costs the holders of the domain and not those
of the pool.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import add

from drumline.scheduling.model import Gang
from drumline.scheduling.placing.topology import Domain, Tree

Vector = tuple[int, ...]
Turn = tuple[int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A gang that holds capacity of a pool, lost places and vanished nodes left out."""

    gang: Gang
    places: Mapping[int, int]
    """Pods by node ordinal."""
    amounts: Mapping[int, Vector]
    """What all of them hold there, by the same ordinals."""

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

    def __add__(self, other: Holder) -> Holder:
        amounts = dict(self.amounts)
        for ordinal, more in other.amounts.items():
            before = amounts.get(ordinal)
            amounts[ordinal] = tuple(map(add, before, more)) if before else more
        places = dict(self.places)
        for ordinal, pods in other.places.items():
            places[ordinal] = places.get(ordinal, 0) + pods
        return Holder(gang=other.gang, places=places, amounts=amounts)


class Roster(dict[str, Holder]):
    """Holders by uid."""

    def __init__(self, tree: Tree, holders: Mapping[str, Holder] | None = None) -> None:
        super().__init__(holders or {})
        self._tree = tree
        self._line: list[Turn] | None = None
        """All of them, in the order of leaving the pool."""
        self._leaves: dict[int, set[str]] = defaultdict(set)
        """By leaf domain: who has pods there."""

    def __setitem__(self, uid: str, holder: Holder) -> None:
        if self._line is not None:
            if uid in self:
                self._strike(self[uid])
            self._enter(holder)
        super().__setitem__(uid, holder)

    def __delitem__(self, uid: str) -> None:
        if self._line is not None:
            self._strike(self[uid])
        super().__delitem__(uid)

    def line(self, domain: Domain) -> Iterator[Holder]:
        """Whoever has pods in a domain, in the order of leaving it."""
        line = self._line
        if line is None:
            line = self._line = []
            for holder in self.values():
                self._enter(holder, sort=False)
            line.sort()
        if not domain.path:
            yield from (self[uid] for _, _, uid in tuple(line))
            return
        leaves = self._tree.domain_of[self._tree.leaf_depth][domain.start : domain.stop]
        uids = {uid for leaf in set(leaves) for uid in self._leaves[leaf]}
        found = [(self[uid].pods_in(domain), self[uid]) for uid in uids]
        found = [(pods, holder) for pods, holder in found if pods]
        found.sort(key=lambda one: (one[1].gang.priority, -one[0], one[1].gang.uid))
        yield from (holder for _, holder in found)

    def _enter(self, holder: Holder, *, sort: bool = True) -> None:
        if self._line is None or not holder.places:
            return
        if sort:
            insort(self._line, _turn(holder))
        else:
            self._line.append(_turn(holder))
        row = self._tree.domain_of[self._tree.leaf_depth]
        for ordinal in holder.places:
            self._leaves[row[ordinal]].add(holder.gang.uid)

    def _strike(self, holder: Holder) -> None:
        if self._line is None or not holder.places:
            return
        del self._line[bisect_left(self._line, _turn(holder))]
        row = self._tree.domain_of[self._tree.leaf_depth]
        for ordinal in holder.places:
            self._leaves[row[ordinal]].discard(holder.gang.uid)


def _turn(holder: Holder) -> Turn:
    return (holder.gang.priority, -sum(holder.places.values()), holder.gang.uid)
