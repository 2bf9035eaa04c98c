"""Room that others' leaving would make, counted without touching the view.

A view that is changed and changed back makes every index over it read both changes. Where gangs are
imagined gone only to see whether there would be room, adding up the slots of the nodes they hold is
enough: O(their places) for each of them, and nobody else notices.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub

from drumline.scheduling.placement.allocations import Allocation, Vector
from drumline.scheduling.placement.search import Search
from drumline.scheduling.undo import Undo


class HypotheticalCapacity:
    """The domains of a search that has no room now, without some holders.

    Args:
        search: for main pods only, none of them anchored or in slices (`can_be`).
    """

    def __init__(self, search: Search) -> None:
        self._index = search.index
        self._index.catch_up()
        depth, tree = search.depth, search.view.tree
        self._domain_of = tree.domain_of[depth]
        self._usable = tree.usable(depth, within=depth)
        self._slots = self._index.slots[depth]
        self._pods = search.demand.pods
        self._changed: dict[int, tuple[Vector, int]] = {}
        """By ordinal: what is free there, and slots, where it is other than in the view."""
        self._gains: dict[int, int] = {}
        """By id of the domain: slots beside those in the index."""

    @staticmethod
    def can_be(search: Search) -> bool:
        """Whether counting slots answers a search."""
        demand = search.demand
        special = demand.slice_levels or demand.anchors or demand.beside or any(demand.roles)
        return not special and not search.variants[-1].fixed

    def release(self, allocation: Allocation) -> Undo:
        """Imagine a holder gone that was not told to go; undone in whatever order."""
        self._shift(allocation, add)
        return lambda: self._shift(allocation, sub)

    def holds(self, identity: int) -> bool:
        """Whether a domain could hold the pods now that they are gone."""
        return bool(self._slots[identity] + self._gains.get(identity, 0) >= self._pods)

    def has_room(self) -> bool:
        """Whether there is room anywhere now that they are gone."""
        return any(self._usable[domain] and self.holds(domain) for domain in self._gains)

    def _shift(self, allocation: Allocation, change: Callable[[int, int], int]) -> None:
        index, changed, gains = self._index, self._changed, self._gains
        for ordinal, amount in allocation.amounts.items():
            before, had = changed.get(ordinal) or (index.free[ordinal], index.cells[ordinal][1])
            after = tuple(map(change, before, amount))
            has = index.slots_of(ordinal, after)
            changed[ordinal] = (after, has)
            if has != had:
                domain = self._domain_of[ordinal]
                gains[domain] = gains.get(domain, 0) + has - had
