"""The search for nodes for the pods of one gang that have none yet.

A gang is its roles' pods and `pods` main pods, by position. The ways to ask (`variants`) differ in
the preferred topology that they keep; each has the capacity that answers it (`capacities`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import mul, sub
from typing import Final

from drumline_scheduler.model import Gang
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.demand_variants import DemandVariant
from drumline_scheduler.placement.domain_selection import (
    CapacityIndex,
    ChosenNodes,
    Demand,
    best_domain,
    candidates,
    choose_nodes,
)
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.placement.slicing import NO_ROOM
from drumline_scheduler.placement.slots import PodShape, SlotIndex
from drumline_scheduler.placement.topology import Domain

_NONE_FIXED: Final = nullcontext(enter_result=True)
"""The context of a search without fixed pods. It holds no state, so all searches share it."""


def is_exact(search: Search) -> bool:
    """Return whether a search finds a placement whenever one exists."""
    return search.capacity.is_exact(search.demand)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for nodes in one view of a pool."""

    view: PoolView
    gang: Gang
    question: Hashable
    """Equal for searches that have the same answer in any given view."""
    variants: Sequence[DemandVariant]
    """Ways to request nodes, best first. The last one has only the required topology."""
    capacities: Sequence[CapacityIndex]
    """Capacity that is free now, by variant."""
    idle: dict[Hashable, CapacityIndex]
    """Capacities under hypothetical conditions, kept from search to search (`what_if`)."""
    pods: int
    """Main pods of the whole gang once all nodes are found."""

    @property
    def capacity(self) -> CapacityIndex:
        """Free capacity for the required variant."""
        return self.capacities[-1]

    @property
    def index(self) -> SlotIndex:
        """Slots by domain for the required variant."""
        return self.capacities[-1].index

    @property
    def shape(self) -> PodShape:
        """The shape of the main pods."""
        return self.variants[-1].shape

    @property
    def demand(self) -> Demand:
        """The demand of the required variant."""
        return self.variants[-1].demand

    @property
    def depth(self) -> int:
        """Depth of the domains of which a single one must hold all pods."""
        return self.demand.required_depth

    @property
    def level(self) -> str:
        """The name of that depth, as in `the best rack`."""
        return self.view.tree.level_name(self.depth) or "pool"

    @property
    def vacant(self) -> int:
        """Number of main pods without a node."""
        last = self.variants[-1]
        if not (last.anchored or last.fixed):
            return len(last.main)
        fixed = (positions for _, positions in last.fixed)
        return len(last.main) + sum(map(len, (*last.anchored, *fixed)))

    @property
    def total(self) -> Vector:
        """Resources that all pods without a node request together."""
        vacant, roles = self.vacant, self.demand.roles
        if not roles:
            return tuple([each * vacant for each in self.shape.request])
        rows = [(self.shape.request, vacant), *zip(self.capacity.requests, roles, strict=True)]
        return tuple(
            sum(request[i] * pods for request, pods in rows) for i in range(len(self.shape.request))
        )

    @property
    def ids(self) -> list[int]:
        """The domains that may hold the pods."""
        return candidates(index=self.index, demand=self.demand, depth=self.depth).tolist()

    def domain(self, identity: int) -> Domain:
        """Return a domain of the depth that is searched."""
        return self.view.tree.domain(self.depth, identity)

    def holds(self, identity: int) -> bool:
        """Return whether a domain can hold the pods now."""
        if self.variants[-1].fixed:
            return bool(self.roomy((identity,)))
        if not self.capacity.may_hold(demand=self.demand, depth=self.depth):
            return False
        most = self.capacity.most(demand=self.demand, depth=self.depth)
        return bool(most[identity] >= self.demand.pods)

    def roomy(self, ids: Iterable[int]) -> list[int]:
        """Return those of these domains that can hold the pods now."""
        with self._fixed_placed(self.variants[-1]) as fits:
            if not (fits and self.capacity.may_hold(demand=self.demand, depth=self.depth)):
                return []
            most = self.capacity.most(demand=self.demand, depth=self.depth)
            return [identity for identity in ids if most[identity] >= self.demand.pods]

    def has_room(self) -> bool:
        """Return whether any domain that the gang may use can hold the pods now."""
        with self._fixed_placed(self.variants[-1]) as fits:
            if not (fits and self.capacity.may_hold(demand=self.demand, depth=self.depth)):
                return False
            ids = candidates(index=self.index, demand=self.demand, depth=self.depth)
            most = self.capacity.most(demand=self.demand, depth=self.depth)
            return bool((most[ids] >= self.demand.pods).any())

    def most(self, capacity: CapacityIndex | None = None) -> list[int]:
        """Return the main pods that fit beside the roles, by domain id.

        The number is negative if even the role pods do not fit.

        Args:
            capacity: a hypothetical capacity. None: the capacity that is free now.
        """
        with self._fixed_placed(self.variants[-1] if capacity is None else None) as fits:
            if not fits:
                return [NO_ROOM] * len(self.view.tree.starts[self.depth])
            capacity = capacity or self.capacity
            return capacity.most(demand=self.demand, depth=self.depth).tolist()

    def find(self) -> list[str] | None:
        """Return the names of the best nodes, in the order of the positions that have none."""
        demand = self.demand
        # From the narrowest depth to the required one. A repair starts at the deepest,
        # to stay close to the gang's other pods. At each depth, preferred slices are
        # dropped before the search climbs.
        first = len(self.view.tree.starts) - 1 if demand.beside else demand.start_depth
        for depth in range(first, demand.required_depth - 1, -1):
            for variant, capacity in zip(self.variants, self.capacities, strict=True):
                chosen = self._try(variant=variant, capacity=capacity, depth=depth)
                if chosen is not None:
                    return self._names(variant=variant, chosen=chosen)
        return None

    def _try(
        self, *, variant: DemandVariant, capacity: CapacityIndex, depth: int
    ) -> ChosenNodes | None:
        """Return the best nodes in one domain of a depth; None if no domain holds the demand."""
        demand = variant.demand
        with self._fixed_placed(variant) as fits:
            if not fits:
                return None
            # All pods have a fixed domain. Only their slots must exist.
            if not demand.placed_freely:
                if capacity.most(demand=demand, depth=0)[0] < 0:
                    return None
                return choose_nodes(capacity=capacity, demand=demand, view=self.view, domain=(0, 0))
            identity = best_domain(capacity=capacity, demand=demand, depth=depth)
            if identity is None:
                return None
            domain = (depth, identity)
            return choose_nodes(capacity=capacity, demand=demand, view=self.view, domain=domain)

    def _fixed_placed(self, variant: DemandVariant | None) -> AbstractContextManager[bool]:
        """Take the capacity of pods that must go to a certain node, inside the context.

        The context's value says whether these pods fit there.
        """
        return _NONE_FIXED if variant is None or not variant.fixed else self._with_fixed(variant)

    @contextmanager
    def _with_fixed(self, variant: DemandVariant) -> Generator[bool]:
        request = variant.shape.request
        places = Counter[int]()  # slices of several levels may share a node
        for ordinal, positions in variant.fixed:
            places[ordinal] += len(positions)
        if not all(self._has(ordinal, request, pods) for ordinal, pods in places.items()):
            yield False
            return
        undo = self.view.take_anonymously(request=request, places=places)
        try:
            yield True
        finally:
            undo()

    def _has(self, ordinal: int, request: Vector, pods: int) -> bool:
        taken = map(mul, request, (pods,) * len(request))
        left = map(sub, self.view.free[ordinal], taken)
        short = any(have < 0 and asked for have, asked in zip(left, request, strict=True))
        return self.index.eligible[ordinal] and not short

    def _names(self, *, variant: DemandVariant, chosen: ChosenNodes) -> list[str]:
        """Return node names by position, within a role, slice or gang in the order of the tree."""
        nodes = self.view.tree.nodes
        if not (any(variant.roles) or variant.anchored or variant.fixed):
            return [nodes[ordinal].name for ordinal in chosen.main]
        where: dict[int, int] = dict(zip(variant.main, chosen.main, strict=True))
        for positions, ordinals in zip(variant.roles, chosen.roles, strict=True):
            where.update(zip(positions, ordinals, strict=True))
        for positions, ordinals in zip(variant.anchored, chosen.anchored, strict=True):
            where.update(zip(positions, ordinals, strict=True))
        for ordinal, positions in variant.fixed:
            where.update(dict.fromkeys(positions, ordinal))
        return [nodes[where[position]].name for position in sorted(where)]
