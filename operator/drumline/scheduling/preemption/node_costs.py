"""Nodes by what it costs to make room on them for one pod more.

The next step on a node is the cheapest few of those who hold something there, lowest cost first,
without whom one more pod has room; whoever need not go for it stays. Its price is their cost for
each pod that then fits more anywhere, as far as pods are missing. Steps are taken in the order of
their prices; whoever is gone makes the nodes cheaper that he shared with others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import add

from drumline.scheduling.placement.pool_view import Vector
from drumline.scheduling.preemption.eviction_simulation import EvictionSimulation, EvictionUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionStep:
    """Who leaves next for the sake of one node."""

    price: float
    parts: Sequence[EvictionUnit]


class NodeCosts:
    """The nodes of some domains and the parts that could leave them."""

    def __init__(
        self, *, trial: EvictionSimulation, ids: Sequence[int], parts: Sequence[EvictionUnit]
    ) -> None:
        search = trial.search
        self._trial = trial
        self._ids = ids
        self._free = search.view.free
        self._slots_in = search.shape.slots_in
        domain_of, inside = search.view.tree.domain_of[search.depth], set(ids)
        self._parts: dict[str, list[EvictionUnit]] = defaultdict(list)
        self.nodes: dict[int, dict[str, int]] = defaultdict(dict)
        """By ordinal, then uid: how many of the gang's parts have to leave until it is off it."""
        self._where: dict[str, list[int]] = defaultdict(list)
        self._rates: dict[int, float] = {}
        """By ordinal: the least that a GPU costs there."""
        self._most: dict[int, int] = {}
        """By ordinal: how many pods a step there may give room to at most."""
        missing, is_open = max(1, self._missing), search.index.open
        capacity = search.view.capacity
        for one in sorted(parts, key=lambda one: one.step) if _has_steps(parts) else parts:
            self._parts[one.uid].append(one)
            alone = not one.step and len(one.amounts) == 1
            for ordinal, amount in one.amounts.items():
                if domain_of[ordinal] not in inside or not is_open[ordinal]:
                    continue
                self._where[one.uid].append(ordinal)
                self.nodes[ordinal][one.uid] = one.step + 1
                rate = one.cost / amount[0] if amount[0] else 0.0
                self._rates[ordinal] = min(rate, self._rates.get(ordinal, rate))
                most = self._slots_in(capacity[ordinal]) if alone else missing
                self._most[ordinal] = min(missing, max(1, most, self._most.get(ordinal, 1)))

    def floor(self, ordinal: int) -> float:
        """What a pod more costs at least on a node, for less than its price is found."""
        each = self._trial.search.shape.request[0]
        if not each:
            return 0.0
        short = each - max(0, self._free[ordinal][0]) % each
        return short * self._rates[ordinal] / self._most[ordinal]

    def step(self, ordinal: int) -> EvictionStep | None:
        """The next step on a node; None if nobody's leaving helps there any more."""
        bundles = [b for uid, last in self.nodes[ordinal].items() if (b := self._left(uid, last))]
        bundles.sort(key=lambda bundle: (_cost(bundle), bundle[0].uid))
        free = self._free[ordinal]
        wanted = self._slots_in(free) + 1
        chosen: list[list[EvictionUnit]] = []
        for bundle in bundles:
            chosen.append(bundle)
            free = _plus(free, bundle, ordinal)
            if self._slots_in(free) >= wanted:
                break
        else:
            return None
        chosen = self._trimmed(ordinal=ordinal, chosen=chosen, wanted=wanted)
        parts = [one for bundle in chosen for one in bundle]
        return EvictionStep(price=_cost(parts) / self._gain(parts), parts=parts)

    def beside(self, parts: Sequence[EvictionUnit]) -> list[int]:
        """Nodes on which the gangs of some parts hold something."""
        return sorted({ordinal for one in parts for ordinal in self._where[one.uid]})

    def _left(self, uid: str, last: int) -> list[EvictionUnit]:
        """The parts of a gang that are still to leave, up to one of them."""
        return [one for one in self._parts[uid][:last] if (uid, one.step) not in self._trial.gone]

    def _trimmed(
        self, *, ordinal: int, chosen: list[list[EvictionUnit]], wanted: int
    ) -> list[list[EvictionUnit]]:
        kept = list(chosen)
        for bundle in reversed(chosen[:-1]):
            rest = [other for other in kept if other is not bundle]
            free = self._free[ordinal]
            for other in rest:
                free = _plus(free, other, ordinal)
            if self._slots_in(free) >= wanted:
                kept = rest
        return kept

    def _gain(self, parts: Sequence[EvictionUnit]) -> int:
        """How many pods more have room then, at most as many as are missing."""
        total: dict[int, Vector] = {}
        for one in parts:
            for ordinal, amount in one.amounts.items():
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
        """Pods that have no room yet."""
        return self._trial.search.demand.pods - self._trial.slots(self._ids)


def free_nodes(
    *, trial: EvictionSimulation, ids: Sequence[int], parts: Sequence[EvictionUnit]
) -> None:
    """Evict step by step, the cheapest for each pod that then fits, until all fit."""
    if trial.roomy(ids):
        return
    market = NodeCosts(trial=trial, ids=ids, parts=parts)
    steps: dict[int, EvictionStep] = {}
    heap = [(market.floor(ordinal), ordinal, False) for ordinal in market.nodes]
    heapify(heap)
    while heap:
        price, ordinal, is_known = heappop(heap)
        if not is_known:
            _price_again(market=market, steps=steps, heap=heap, ordinal=ordinal)
            continue
        step = steps.get(ordinal)
        if step is None or step.price != price:
            continue  # a newer entry tells its price
        if not _take(trial=trial, parts=step.parts):
            del steps[ordinal]  # the law forbids it
            continue
        if trial.roomy(ids):
            return
        for other in market.beside(step.parts):
            _price_again(market=market, steps=steps, heap=heap, ordinal=other)


def _price_again(
    *,
    market: NodeCosts,
    steps: dict[int, EvictionStep],
    heap: list[tuple[float, int, bool]],
    ordinal: int,
) -> None:
    steps.pop(ordinal, None)
    step = market.step(ordinal)
    if step is not None:
        steps[ordinal] = step
        heappush(heap, (step.price, ordinal, True))


def _take(*, trial: EvictionSimulation, parts: Sequence[EvictionUnit]) -> bool:
    """Let some parts go together; nobody, if more would be reclaimed than may be."""
    for count, one in enumerate(parts):
        trial.evict(one)
        if not trial.claim.within_reach:
            for back in reversed(parts[: count + 1]):
                trial.restore(back)
            return False
    return True


def _cost(parts: Sequence[EvictionUnit]) -> float:
    return sum(one.cost for one in parts)


def _plus(free: Vector, parts: Sequence[EvictionUnit], ordinal: int) -> Vector:
    for one in parts:
        amount = one.amounts.get(ordinal)
        if amount:
            free = tuple(map(add, free, amount))
    return free


def _has_steps(parts: Sequence[EvictionUnit]) -> bool:
    return any(one.step for one in parts)
