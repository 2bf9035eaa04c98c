"""Which running gangs have to go so that some pods fit, at the least cost.

The domain and its victims are chosen together: for each domain that could hold the pods if all
candidates left it, a set of victims is found, and the cheapest of these sets is taken. Domains come
in the order of a bound on their cost (the cheapest GPUs in them that would make up for those that
are missing), and no domain is tried whose bound is above what was found.

* A first set: nodes by the cost of each pod that then fits more, or, where gangs span nodes, parts
  by their cost, if that is better; then whatever else the quota needs, by cost for each GPU; then
  every victim comes back, dearest first, that need not go, and dear ones are exchanged for cheaper
  ones.
* Where few candidates matter, all sets that are cheaper are tried: the result is the optimum.

In the end, every victim is necessary: without its leaving there is no place anywhere (I6).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import gcd
from typing import Final

from drumline.scheduling.preemption.eviction_simulation import EvictionSimulation, EvictionUnit
from drumline.scheduling.preemption.node_costs import free_nodes

MAX_EXACT_CANDIDATES: Final = 12
MAX_EXACT_TRIALS: Final = 3000
"""For one search, all domains together: it bounds the time of a decision."""
MAX_EXCHANGES: Final = 300
"""Trials of a cheaper part in the place of a dearer one, likewise."""

MANY_TIMES: Final = 4
"""A second first set is given up once so many times the parts of the other one are gone."""
MAX_WEIGHED: Final = 64
"""So many parts in a domain are weighed exactly for its bound."""

Split = Callable[[EvictionUnit, Callable[[int], bool]], Sequence[EvictionUnit]]
"""The parts of a gang, given on which nodes (by ordinal) its leaving would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Domains of which one has to hold the pods, and who could leave them."""

    ids: Sequence[int]
    inside: Sequence[EvictionUnit]
    outside: Callable[[], Sequence[EvictionUnit]]
    """Who holds no place there and may matter to the quota."""
    floor: float
    """No set of victims costs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimSet:
    """A set that makes room."""

    cost: float
    parts: Sequence[EvictionUnit]


class SearchBudget:
    """How many trials are left."""

    def __init__(self) -> None:
        self.exact = MAX_EXACT_TRIALS
        self.exchanges = MAX_EXCHANGES


def least_victims(
    *, trial: EvictionSimulation, candidates: Sequence[EvictionUnit], split: Split
) -> list[EvictionUnit] | None:
    """The cheapest lawful victims found, by uid; None if no set of candidates makes room."""
    everywhere, purse = trial.search.ids, SearchBudget()
    best: VictimSet | None = None
    for scope in _scopes(trial=trial, candidates=candidates, split=split):
        if best is not None and scope.floor >= best.cost:
            break
        best = _in_scope(trial=trial, scope=scope, best=best, purse=purse)
    if best is None:
        return None
    _evict_all(trial, best.parts)
    if len(everywhere) > 1:
        _spare(trial=trial, scope=everywhere)
    victims = sorted(trial.gone.values(), key=lambda one: (one.uid, one.step))
    trial.restore_all()
    return victims


def _scopes(
    *, trial: EvictionSimulation, candidates: Sequence[EvictionUnit], split: Split
) -> list[Scope]:
    """Where the pods could go, most promising first; everywhere at once if only quota is short."""
    search = trial.search
    domain_of, everywhere = search.view.tree.domain_of[search.depth], search.ids
    if trial.roomy(everywhere):
        parts = list(chain.from_iterable(split(one, lambda _: True) for one in candidates))
        return [Scope(ids=everywhere, inside=parts, outside=_nobody, floor=0.0)]
    inside: dict[int, list[EvictionUnit]] = defaultdict(list)
    for one in candidates:
        for identity in {domain_of[ordinal] for ordinal in one.amounts}:
            inside[identity].append(one)
    quota_is_there = trial.claim.is_unconditional
    scopes: list[Scope] = []
    for identity in everywhere:
        within = _within(domain_of, identity)
        parts = list(chain.from_iterable(split(one, within) for one in inside[identity]))
        floor = _floor(trial=trial, identity=identity, parts=parts)
        if floor is not None:
            others = partial(_outside, candidates=candidates, inside=parts, split=split)
            scopes.append(
                Scope(
                    ids=[identity],
                    inside=parts,
                    outside=_nobody if quota_is_there else others,
                    floor=floor,
                )
            )
    return sorted(scopes, key=lambda scope: (scope.floor, scope.ids))


def _nobody() -> Sequence[EvictionUnit]:
    return ()


def _outside(
    *, candidates: Sequence[EvictionUnit], inside: Sequence[EvictionUnit], split: Split
) -> Sequence[EvictionUnit]:
    here = {one.uid for one in inside}
    others = (split(one, lambda _: False) for one in candidates if one.uid not in here)
    return list(chain.from_iterable(others))


def _within(domain_of: Sequence[int], identity: int) -> Callable[[int], bool]:
    return lambda ordinal: domain_of[ordinal] == identity


def _floor(
    *, trial: EvictionSimulation, identity: int, parts: Sequence[EvictionUnit]
) -> float | None:
    """What the GPUs that are missing in a domain cost at least; None if they are not to be had."""
    domain_of = trial.search.view.tree.domain_of[trial.search.depth]
    free = trial.free_gpus(identity)
    if free is None or free >= trial.gpus:
        return 0.0
    missing = trial.gpus - free
    line: list[tuple[float, int]] = []
    for one in parts:
        gpus = sum(amount[0] for i, amount in one.amounts.items() if domain_of[i] == identity)
        if gpus:
            line.append((one.cost, gpus))
    if sum(gpus for _, gpus in line) < missing:
        return None
    floor = _least_cost(line, missing) if len(line) <= MAX_WEIGHED else _least_rate(line, missing)
    return floor * (1 - 1e-9)  # sums in another order may differ in the last digit


def _least_cost(line: Sequence[tuple[float, int]], missing: int) -> float:
    """The least cost of a choice of (cost, GPUs) that comes to so many GPUs. Exact."""
    unit = gcd(*(gpus for _, gpus in line))
    wanted = -(-missing // unit)
    best = [0.0] + [float("inf")] * wanted
    for cost, gpus in line:
        units = gpus // unit
        for have in range(wanted, 0, -1):
            best[have] = min(best[have], best[max(0, have - units)] + cost)
    return best[wanted]


def _least_rate(line: Sequence[tuple[float, int]], missing: int) -> float:
    """The same where a part of each counts too."""
    floor = 0.0
    for cost, gpus in sorted(line, key=lambda entry: entry[0] / entry[1]):
        floor += cost * min(1.0, missing / gpus)
        missing -= gpus
        if missing <= 0:
            break
    return floor


def _in_scope(
    *, trial: EvictionSimulation, scope: Scope, best: VictimSet | None, purse: SearchBudget
) -> VictimSet | None:
    """The cheapest victims known, once those that make room in one scope are."""
    if not trial.roomy_without(scope.inside, scope.ids):
        return best
    relevant = [*scope.inside, *scope.outside()]
    free_nodes(trial=trial, ids=scope.ids, parts=scope.inside)
    found = _settle(trial=trial, scope=scope, relevant=relevant)
    best = _better(best, found)
    if best is not None and best.cost <= scope.floor:
        return best
    if found is None or any(len(one.amounts) > 1 for one in scope.inside):
        most = MANY_TIMES * len(found.parts) + MAX_WEIGHED if found else len(scope.inside)
        if _cheapest(trial=trial, ids=scope.ids, parts=scope.inside, most=most):
            best = _better(best, _settle(trial=trial, scope=scope, relevant=relevant))
    if len(relevant) <= MAX_EXACT_CANDIDATES:
        return _better(best, _exact(trial, scope, relevant, best=best, purse=purse))
    if best is None:
        return None
    return _exchange(trial=trial, scope=scope, relevant=relevant, best=best, purse=purse)


def _better(one: VictimSet | None, other: VictimSet | None) -> VictimSet | None:
    if one is None or (other is not None and other.cost < one.cost):
        return other
    return one


def _settle(
    *, trial: EvictionSimulation, scope: Scope, relevant: Sequence[EvictionUnit]
) -> VictimSet | None:
    """A first pick once it has the quota and nobody is gone in vain; nobody is gone afterwards."""
    if not trial.claim.holds():
        for one in _in_order(relevant, key=lambda one: one.rate):
            if trial.may_leave(one):
                evict_if_permitted(trial, one)
                if trial.claim.holds():
                    break
    found = None
    if trial.enough(scope.ids):
        _spare(trial=trial, scope=scope.ids)
        found = VictimSet(cost=trial.cost(), parts=list(trial.gone.values()))
    trial.restore_all()
    return found


def _cheapest(
    *, trial: EvictionSimulation, ids: Sequence[int], parts: Sequence[EvictionUnit], most: int
) -> bool:
    """Evict the cheapest ones until all fit; if so many do not help, nobody is gone again."""
    line = _in_order(parts, key=lambda one: one.order)
    stride = max(1, len(line) // 64)
    for count, one in enumerate(line):
        if count % stride == 0 and trial.roomy(ids):
            return True
        if count >= most:
            break
        if trial.may_leave(one):
            evict_if_permitted(trial, one)
    else:
        return True
    trial.restore_all()
    return False


def _in_order(
    parts: Sequence[EvictionUnit], *, key: Callable[[EvictionUnit], tuple[object, ...]]
) -> list[EvictionUnit]:
    """By a key, but no part of a gang before those that leave before it."""
    if not any(one.step for one in parts):
        return sorted(parts, key=key)
    keys: dict[str, tuple[object, ...]] = {}
    placed: list[tuple[tuple[object, ...], int, int, EvictionUnit]] = []
    for position, one in enumerate(sorted(parts, key=lambda one: one.step)):
        highest = max(key(one), keys.get(one.uid, key(one)))  # type: ignore[type-var]
        keys[one.uid] = highest
        placed.append((highest, one.step, position, one))
    return [one for *_, one in sorted(placed, key=lambda entry: entry[:3])]


def evict_if_permitted(trial: EvictionSimulation, one: EvictionUnit) -> bool:
    """Let a part go unless more would be reclaimed than may be."""
    trial.evict(one)
    if trial.claim.within_reach:
        return True
    trial.restore(one)
    return False


def _evict_all(trial: EvictionSimulation, parts: Iterable[EvictionUnit]) -> None:
    for one in sorted(parts, key=lambda one: one.step):
        trial.evict(one)


def _spare(*, trial: EvictionSimulation, scope: Sequence[int]) -> None:
    """Let everybody come back who need not have gone, dearest first."""
    again = True
    while again:  # who was needed beside a reclaimed one may not be needed without it
        spared = False
        for one in sorted(trial.gone.values(), key=lambda one: one.order, reverse=True):
            if not trial.may_return(one) or trial.is_needed(one, scope):
                continue
            trial.restore(one)
            if trial.enough(scope):
                spared = True
            else:
                trial.evict(one)
                trial.roomy(scope)
        left = trial.gone.values()
        again = spared and (len({one.why for one in left}) > 1 or any(one.step for one in left))


def _exchange(
    *,
    trial: EvictionSimulation,
    scope: Scope,
    relevant: Sequence[EvictionUnit],
    best: VictimSet,
    purse: SearchBudget,
) -> VictimSet:
    """Take cheaper parts in the place of dearer ones while that helps."""
    _evict_all(trial, best.parts)
    dearest = max(one.cost for one in best.parts)
    line = sorted((one for one in relevant if one.cost < dearest), key=lambda one: one.order)
    while purse.exchanges and _exchanged(trial=trial, scope=scope, line=line, purse=purse):
        _spare(trial=trial, scope=scope.ids)
    found = VictimSet(cost=trial.cost(), parts=list(trial.gone.values()))
    trial.restore_all()
    return _better(best, found) or best


def _exchanged(
    *, trial: EvictionSimulation, scope: Scope, line: Sequence[EvictionUnit], purse: SearchBudget
) -> bool:
    for dear in sorted(trial.gone.values(), key=lambda one: one.order, reverse=True):
        if not trial.may_return(dear):
            continue
        trial.restore(dear)
        entitled = trial.claim.holds()
        for cheap in line:
            if cheap.cost >= dear.cost or not purse.exchanges:
                break
            if (cheap.uid, cheap.step) in trial.gone or not trial.may_leave(cheap):
                continue
            purse.exchanges -= 1
            if entitled and trial.gain(cheap) == 0:
                continue
            trial.evict(cheap)
            if trial.enough(scope.ids):
                return True
            trial.restore(cheap)
        trial.evict(dear)
        if not purse.exchanges:
            return False
    return False


def _exact(
    trial: EvictionSimulation,
    scope: Scope,
    relevant: Sequence[EvictionUnit],
    *,
    best: VictimSet | None,
    purse: SearchBudget,
) -> VictimSet | None:
    """The cheapest set that is cheaper than a known one, if there is one."""
    line = _in_order(relevant, key=lambda one: one.order)
    found, bound = None, best.cost if best else float("inf")

    def widen(start: int, cost: float) -> None:
        nonlocal found, bound
        for position in range(start, len(line)):
            one = line[position]
            if not purse.exact:
                return
            if cost + one.cost >= bound or not trial.may_leave(one):
                continue
            purse.exact -= 1
            trial.evict(one)
            if trial.enough(scope.ids):
                bound = cost + one.cost
                found = VictimSet(cost=bound, parts=list(trial.gone.values()))
            else:
                widen(position + 1, cost + one.cost)
            trial.restore(one)

    widen(0, 0.0)
    return found
