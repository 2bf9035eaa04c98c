"""A search for places: what is looked for, in which picture, and which domains have it.

It is asked for by position: of `pods` main pods and the gang's roles, those that have no node yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from drumline.scheduling.model import Gang
from drumline.scheduling.placement import Demand, Places, candidates, find_places
from drumline.scheduling.slots import Shape, SlotIndex, domain_slots
from drumline.scheduling.topology import Domain
from drumline.scheduling.view import PoolView


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for places, as it was made: the question that a refusal answers."""

    view: PoolView
    index: SlotIndex
    shape: Shape
    gang: Gang
    demand: Demand

    @property
    def question(self) -> Hashable:
        """Equal for searches to which every picture gives the same answer."""
        return (self.view.tree.pool.name, self.shape, self.demand)

    @property
    def depth(self) -> int:
        """Depth of the domains of which one has to hold all the pods."""
        return self.demand.required_depth

    @property
    def level(self) -> str:
        """Its name, as in `the best rack`."""
        return self.view.tree.level_name(self.depth) or "pool"

    @property
    def ids(self) -> list[int]:
        """The domains that may hold the pods."""
        return candidates(index=self.index, demand=self.demand, depth=self.depth)

    def domain(self, identity: int) -> Domain:
        """A domain of the depth that is searched."""
        return self.view.tree.domains[self.depth][identity]

    def holds(self, identity: int) -> bool:
        """Whether a domain can hold the pods now, in the picture that is searched."""
        return bool(self.roomy((identity,)))

    def roomy(self, ids: Iterable[int]) -> list[int]:
        """Those of some domains that can hold the pods now."""
        self.index.catch_up()
        slots = self.index.slots[self.depth]
        return [identity for identity in ids if slots[identity] >= self.demand.pods]

    def find(self) -> list[str] | None:
        """The best places: node names of the positions that are looked for, in their order."""
        places = find_places(index=self.index, demand=self.demand)
        return None if places is None else self.names(places)

    def emptied(self, *, everywhere: bool) -> list[int]:
        """Slots by domain if nobody else held anything; a gang's own places never make room."""
        return domain_slots(
            view=self.view,
            shape=self.shape,
            amounts=self.view.emptied_but_for(self.gang),
            depth=self.depth,
            everywhere=everywhere,
        )

    def names(self, places: Places) -> list[str]:
        """Node names by pod: in the order of the tree, so that neighbours sit together."""
        nodes = self.view.tree.nodes
        return [nodes[i].name for i in sorted(places) for _ in range(places[i])]
