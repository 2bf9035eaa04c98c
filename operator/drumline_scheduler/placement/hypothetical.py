"""Count the slots that domains would have without some gangs, without changing the view.

Every index over a view would read a change and its undo. To see whether the pods would fit, it is
enough to add up the slots on the nodes of the removed gangs: O(nodes of the gang) each.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub

from drumline_scheduler.placement.allocations import Allocation, Vector
from drumline_scheduler.placement.search import Search
from drumline_scheduler.undo import Undo


class HypotheticalCapacity:
    """The domains of a search that has no room now, without some gangs.

    Args:
        search: search for main pods only, without anchors and slices (`applies_to`).
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
        """Free amounts and slots by ordinal, for nodes that differ from the view."""
        self._gains: dict[int, int] = {}
        """Additional slots by domain id."""

    @staticmethod
    def applies_to(search: Search) -> bool:
        """Return whether counting slots alone answers a search."""
        demand = search.demand
        # Slices, anchors and roles need more than a sum of slots.
        special = demand.slice_levels or demand.anchors or demand.beside or any(demand.roles)
        return not special and not search.variants[-1].fixed

    def release(self, allocation: Allocation) -> Undo:
        """Remove a gang that is not being evicted.

        The undo functions may be called in any order.
        """
        self._shift(allocation, add)
        return lambda: self._shift(allocation, sub)

    def holds(self, identity: int) -> bool:
        """Return whether a domain could hold the pods without the removed gangs."""
        return bool(self._slots[identity] + self._gains.get(identity, 0) >= self._pods)

    def has_room(self) -> bool:
        """Return whether any domain could hold the pods without the removed gangs."""
        # A domain without gains has no more room than before, so only changed domains are checked.
        return any(self._usable[domain] and self.holds(domain) for domain in self._gains)

    def _shift(self, allocation: Allocation, change: Callable[[int, int], int]) -> None:
        index, changed, gains = self._index, self._changed, self._gains
        for ordinal, amount in allocation.amounts.items():
            before, slots_before = changed.get(ordinal) or (
                index.free[ordinal],
                index.cell(ordinal)[1],
            )
            after = tuple(map(change, before, amount))
            slots_after = index.slots_of(ordinal, after)
            changed[ordinal] = (after, slots_after)
            if slots_after != slots_before:
                domain = self._domain_of[ordinal]
                gains[domain] = gains.get(domain, 0) + slots_after - slots_before
