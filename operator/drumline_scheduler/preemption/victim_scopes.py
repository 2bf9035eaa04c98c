"""Bound the cost of victims for each domain that could hold the pods (phase 1 of `victims`).

The bound of a domain is the cost of the cheapest GPUs in it that add up to the missing ones: no set
of victims for the domain costs less. `victims` searches the domains in the order of their bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import gcd
from typing import Final

from drumline_scheduler.preemption.eviction_simulation import EvictionSimulation, EvictionUnit

MAX_WEIGHED: Final = 64
"""Number of units in a domain up to which its bound is computed exactly."""

Split = Callable[[EvictionUnit, Callable[[int], bool]], Sequence[EvictionUnit]]
"""Splits a gang into units. The second argument returns whether a node (by ordinal) is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Domains of which one must hold the pods, and the units whose eviction may help."""

    ids: Sequence[int]
    inside: Sequence[EvictionUnit]
    """Units with pods in the domains."""
    outside: Callable[[], Sequence[EvictionUnit]]
    """Returns all other units. Evicting them frees only quota."""
    floor: float
    """Lower bound on the cost of a set of victims."""


def scopes(
    *, simulation: EvictionSimulation, candidates: Sequence[EvictionUnit], split: Split
) -> list[Scope]:
    """Return the domains by their bounds; all domains as one scope if only quota is missing.

    Args:
        simulation: the search and the preemption policy, with nothing evicted.
        candidates: gangs, each as one unit.
        split: splits a candidate with surplus into units.
    """
    search = simulation.search
    domain_of, everywhere = search.view.tree.domain_of[search.depth], search.ids
    if simulation.domains_with_room(everywhere):
        units = list(chain.from_iterable(split(unit, lambda _: True) for unit in candidates))
        return [Scope(ids=everywhere, inside=units, outside=_no_units, floor=0.0)]
    # Otherwise one scope for each domain, with the gangs that have pods in it.
    inside: dict[int, list[EvictionUnit]] = defaultdict(list)
    for unit in candidates:
        for identity in {domain_of[ordinal] for ordinal in unit.amounts}:
            inside[identity].append(unit)
    needs_quota = not simulation.claim.is_unconditional
    scopes: list[Scope] = []
    for identity in everywhere:
        within = _within(domain_of, identity)
        units = list(chain.from_iterable(split(unit, within) for unit in inside[identity]))
        # A domain without enough GPUs even after all evictions is left out.
        floor = _floor(simulation=simulation, identity=identity, units=units)
        if floor is not None:
            outside = partial(_outside, candidates=candidates, inside=units, split=split)
            scopes.append(
                Scope(
                    ids=[identity],
                    inside=units,
                    outside=outside if needs_quota else _no_units,
                    floor=floor,
                )
            )
    return sorted(scopes, key=lambda scope: (scope.floor, scope.ids))


def _no_units() -> Sequence[EvictionUnit]:
    return ()


def _outside(
    *, candidates: Sequence[EvictionUnit], inside: Sequence[EvictionUnit], split: Split
) -> Sequence[EvictionUnit]:
    here = {unit.uid for unit in inside}
    outside = (split(unit, lambda _: False) for unit in candidates if unit.uid not in here)
    return list(chain.from_iterable(outside))


def _within(domain_of: Sequence[int], identity: int) -> Callable[[int], bool]:
    return lambda ordinal: domain_of[ordinal] == identity


def _floor(
    *, simulation: EvictionSimulation, identity: int, units: Sequence[EvictionUnit]
) -> float | None:
    """Return a lower bound on the cost of the missing GPUs of a domain; None if it has too few.

    0 if GPUs cannot be counted, such as for pods of several roles.
    """
    domain_of = simulation.search.view.tree.domain_of[simulation.search.depth]
    free = simulation.free_gpus(identity)
    if free is None or free >= simulation.gpus:
        return 0.0
    missing = simulation.gpus - free
    offers: list[tuple[float, int]] = []
    for unit in units:
        gpus = sum(amount[0] for i, amount in unit.amounts.items() if domain_of[i] == identity)
        if gpus:
            offers.append((unit.cost, gpus))
    if sum(gpus for _, gpus in offers) < missing:
        return None
    exact = len(offers) <= MAX_WEIGHED
    floor = _least_cost(offers, missing) if exact else _least_rate(offers, missing)
    return floor * (1 - 1e-9)  # sums in another order may differ in the last digit


def _least_cost(offers: Sequence[tuple[float, int]], missing: int) -> float:
    """Return the least cost of offers (cost, GPUs) that have `missing` GPUs together. Exact.

    A covering knapsack by dynamic programming, in steps of the greatest common divisor of the GPUs.
    `best[n]` is the least cost of at least `n` steps with the offers seen so far. O(offers x
    steps).
    """
    step = gcd(*(gpus for _, gpus in offers))
    wanted = -(-missing // step)
    best = [0.0] + [float("inf")] * wanted
    for cost, gpus in offers:
        steps = gpus // step
        for have in range(wanted, 0, -1):
            best[have] = min(best[have], best[max(0, have - steps)] + cost)
    return best[wanted]


def _least_rate(offers: Sequence[tuple[float, int]], missing: int) -> float:
    """Return the fractional relaxation of `_least_cost`: parts of offers count.

    O(offers log offers).
    """
    floor = 0.0
    for cost, gpus in sorted(offers, key=lambda entry: entry[0] / entry[1]):
        floor += cost * min(1.0, missing / gpus)
        missing -= gpus
        if missing <= 0:
            break
    return floor
