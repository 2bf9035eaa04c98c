"""Greedy eviction by the price of one more pod on each node.

The next step of a node evicts the cheapest units on it that make room for one more pod there. Units
that turn out to be unnecessary are dropped. The price of a step is the cost of its units divided by
the number of pods that then fit more on any node, at most the number of missing pods. Steps are
taken by ascending price. An eviction changes the prices of all nodes that its gang had pods on.

Example: two pods of 8 GPUs are missing. Node 1 has a unit of 8 GPUs that costs 4; nodes 2 and 3
share a gang of 16 GPUs that costs 6. The step of node 1 has the price 4 / 1. The step of nodes 2
and 3 has 6 / 2 = 3, because it makes room for two pods. So the gang is evicted, and node 1 is kept.

Prices are computed lazily. The heap holds a lower bound for each node until it comes to the top.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import add

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.preemption.eviction_simulation import EvictionSimulation, EvictionUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionStep:
    """The units to evict next for one node."""

    price: float
    units: Sequence[EvictionUnit]


class NodeCosts:
    """The nodes of some domains and the units that could be evicted from them.

    Args:
        simulation: evictions that are tried.
        ids: ids of the domains.
        units: gangs, or parts of them, that can be evicted together.
    """

    def __init__(
        self, *, simulation: EvictionSimulation, ids: Sequence[int], units: Sequence[EvictionUnit]
    ) -> None:
        search = simulation.search
        self._simulation = simulation
        self._ids = ids
        self._free = search.view.free
        self._slots_in = search.shape.slots_in
        domain_of, inside = search.view.tree.domain_of[search.depth], set(ids)
        self._units: dict[str, list[EvictionUnit]] = defaultdict(list)
        self.nodes: dict[int, dict[str, int]] = defaultdict(dict)
        """Number of units of a gang to evict until it is off the node, by ordinal, then uid."""
        self._where: dict[str, list[int]] = defaultdict(list)
        """Ordinals of the gang's nodes, by uid."""
        self._rates: dict[int, float] = {}
        """Lowest cost of a GPU on the node, by ordinal."""
        self._gains: dict[tuple[tuple[str, int], ...], int] = {}
        """Gains by the units of a step, as long as no further unit is evicted."""
        self._most: dict[int, int] = {}
        """Most pods that a step there may make room for, by ordinal."""
        missing, is_open = max(1, self._missing), search.index.counted
        capacity = search.view.capacity
        for unit in sorted(units, key=lambda unit: unit.step) if _has_steps(units) else units:
            self._units[unit.uid].append(unit)
            # A unit on one node frees at most that node. A unit on several nodes
            # may free any number of slots.
            alone = not unit.step and len(unit.amounts) == 1
            for ordinal, amount in unit.amounts.items():
                if domain_of[ordinal] not in inside or not is_open[ordinal]:
                    continue
                self._where[unit.uid].append(ordinal)
                self.nodes[ordinal][unit.uid] = unit.step + 1
                rate = unit.cost / amount[0] if amount[0] else 0.0
                self._rates[ordinal] = min(rate, self._rates.get(ordinal, rate))
                most = self._slots_in(capacity[ordinal]) if alone else missing
                self._most[ordinal] = min(missing, max(1, most, self._most.get(ordinal, 1)))

    def floor(self, ordinal: int) -> float:
        """Return a lower bound on the price of a node's next step."""
        each = self._simulation.search.shape.request[0]
        if not each:
            return 0.0
        # At least the GPUs missing for one pod must be freed, at the lowest rate on the node.
        short = each - max(0, self._free[ordinal][0]) % each
        return short * self._rates[ordinal] / self._most[ordinal]

    def step(self, ordinal: int) -> EvictionStep | None:
        """Return the next step of a node; None if no eviction makes room for another pod there."""
        # A bundle is what has to be evicted of one gang until it is off the node.
        bundles = [b for uid, last in self.nodes[ordinal].items() if (b := self._left(uid, last))]
        bundles.sort(key=lambda bundle: (_cost(bundle), bundle[0].uid))
        free = self._free[ordinal]
        wanted = self._slots_in(free) + 1
        chosen: list[list[EvictionUnit]] = []
        # Add bundles, the cheapest first, until one more pod fits.
        for bundle in bundles:
            chosen.append(bundle)
            free = _plus(free, bundle, ordinal)
            if self._slots_in(free) >= wanted:
                break
        else:
            return None
        chosen = self._trimmed(ordinal=ordinal, chosen=chosen, wanted=wanted)
        units = [unit for bundle in chosen for unit in bundle]
        return EvictionStep(price=_cost(units) / self._gain(units), units=units)

    def beside(self, units: Sequence[EvictionUnit]) -> list[int]:
        """Return all nodes with pods of the gangs of these units."""
        return sorted({ordinal for unit in units for ordinal in self._where[unit.uid]})

    def _left(self, uid: str, last: int) -> list[EvictionUnit]:
        """Return those of the first `last` units of a gang that are not evicted."""
        return [
            unit
            for unit in self._units[uid][:last]
            if (uid, unit.step) not in self._simulation.evicted
        ]

    def _trimmed(
        self, *, ordinal: int, chosen: list[list[EvictionUnit]], wanted: int
    ) -> list[list[EvictionUnit]]:
        """Return the chosen bundles without unnecessary ones, dropping the most expensive first."""
        needed = list(chosen)
        for bundle in reversed(chosen[:-1]):
            rest = [other for other in needed if other is not bundle]
            free = self._free[ordinal]
            for other in rest:
                free = _plus(free, other, ordinal)
            if self._slots_in(free) >= wanted:
                needed = rest
        return needed

    def forget_gains(self) -> None:
        """Compute all gains anew, because units were evicted."""
        self._gains.clear()

    def _gain(self, units: Sequence[EvictionUnit]) -> int:
        """Return how many more pods fit after these evictions, at most the missing ones.

        A gang on hundreds of nodes is part of the step of each of them, so gains are kept.
        """
        key = tuple((unit.uid, unit.step) for unit in units)
        if key not in self._gains:
            self._gains[key] = self._counted_gain(units)
        return self._gains[key]

    def _counted_gain(self, units: Sequence[EvictionUnit]) -> int:
        total: dict[int, Vector] = {}
        for unit in units:
            for ordinal, amount in unit.amounts.items():
                if ordinal in self.nodes:
                    held = total.get(ordinal)
                    total[ordinal] = tuple(map(add, held, amount)) if held else amount
        gain = sum(
            self._slots_in(tuple(map(add, self._free[i], amount))) - self._slots_in(self._free[i])
            for i, amount in total.items()
        )
        return max(1, min(gain, self._missing))

    @property
    def _missing(self) -> int:
        """Number of pods without a slot so far."""
        return self._simulation.search.demand.pods - self._simulation.slots(self._ids)


def free_nodes(
    *, simulation: EvictionSimulation, ids: Sequence[int], units: Sequence[EvictionUnit]
) -> None:
    """Evict units step by step, the lowest price first, until all pods fit or no step is left.

    Args:
        simulation: the search and the preemption policy.
        ids: domains of which one must hold the pods.
        units: units that may be evicted.
    """
    if simulation.domains_with_room(ids):
        return
    costs = NodeCosts(simulation=simulation, ids=ids, units=units)
    steps: dict[int, EvictionStep] = {}
    # Entries are (price or its lower bound, ordinal, whether it is the price).
    heap = [(costs.floor(ordinal), ordinal, False) for ordinal in costs.nodes]
    heapify(heap)
    while heap:
        price, ordinal, is_known = heappop(heap)
        if not is_known:
            _update_price(costs=costs, steps=steps, heap=heap, ordinal=ordinal)
            continue
        step = steps.get(ordinal)
        if step is None or step.price != price:
            continue  # stale: a newer entry of the heap has its price
        is_evicted = _evict_together(simulation=simulation, units=step.units)
        costs.forget_gains()
        if not is_evicted:
            del steps[ordinal]  # the preemption policy forbids it
            continue
        if simulation.domains_with_room(ids):
            return
        for other in costs.beside(step.units):
            _update_price(costs=costs, steps=steps, heap=heap, ordinal=other)


def _update_price(
    *,
    costs: NodeCosts,
    steps: dict[int, EvictionStep],
    heap: list[tuple[float, int, bool]],
    ordinal: int,
) -> None:
    steps.pop(ordinal, None)
    step = costs.step(ordinal)
    if step is not None:
        steps[ordinal] = step
        heappush(heap, (step.price, ordinal, True))


def _evict_together(*, simulation: EvictionSimulation, units: Sequence[EvictionUnit]) -> bool:
    """Evict all units; none of them, and return False, if the preemption policy forbids one."""
    for count, unit in enumerate(units):
        simulation.evict(unit)
        if not simulation.claim.within_reach:
            for evicted in reversed(units[: count + 1]):
                simulation.restore(evicted)
            return False
    return True


def _cost(units: Sequence[EvictionUnit]) -> float:
    return sum(unit.cost for unit in units)


def _plus(free: Vector, units: Sequence[EvictionUnit], ordinal: int) -> Vector:
    for unit in units:
        amount = unit.amounts.get(ordinal)
        if amount:
            free = tuple(map(add, free, amount))
    return free


def _has_steps(units: Sequence[EvictionUnit]) -> bool:
    return any(unit.step for unit in units)
