"""Search for victims: the eviction units that make room for some pods at the lowest cost.

Domain and victims are chosen together. For each domain that could hold the pods without any
candidate, a set of victims is searched, and the cheapest set wins:

1. Scopes. Each domain gets a lower bound on its cost: the cheapest GPUs in it that add up to the
   missing ones. Domains are searched in the order of their bounds, and the search stops at the
   first domain whose bound is not below the best cost so far (branch and bound).
2. First set. A greedy set: nodes by the price of one more pod on them (`node_costs`). If gangs
   span nodes, also units by their cost. Then units by cost for each GPU until the quota suffices.
3. Minimisation. Each victim that is not necessary is restored, most expensive first.
4. Improvement. With few candidates all cheaper sets are tried, so the result is the optimum. With
   many, expensive victims are exchanged for cheaper units while that helps. Both end when
   the time of the cycle is over. Then no further domain is searched either.

Example: a gang needs 16 GPUs in one rack. Rack A has 8 free and units of 8 GPUs at costs 5 and 9;
rack B has 0 free and two units of 8 at costs 2 and 2. The bounds are 5 for A (one unit) and 4 for B
(both units), so B is searched first and gives a set of cost 4. A is skipped, because 5 >= 4. If B's
units cost 2 and 4, its bound is 6: A is searched first, and B is skipped.

The result is minimal: without evicting any one of the victims the pods fit nowhere (I6). Kueue
minimises its candidates in the same way, but does not choose the domain with them:
https://github.com/kubernetes-sigs/kueue/tree/main/pkg/scheduler/preemption
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.preemption.eviction_simulation import EvictionSimulation, EvictionUnit
from drumline_scheduler.preemption.node_costs import free_nodes
from drumline_scheduler.preemption.victim_scopes import MAX_WEIGHED, Scope, Split, scopes
from drumline_scheduler.work import is_late

MAX_EXACT_CANDIDATES: Final = 10
"""Number of relevant units up to which all sets are tried."""
MAX_EXACT_TRIALS: Final = 1000
"""Evictions tried by the exact search, all domains together. It bounds the time of a decision."""
MAX_EXCHANGES: Final = 300
"""Exchanges tried, all domains together. It bounds the time of a decision."""

MAX_UNBOUNDED_SCOPES: Final = 8
"""Domains without a bound that are searched after a set was found. GPUs do not bound pods of
several roles."""
MANY_TIMES: Final = 4
"""The second greedy set is abandoned at this multiple of the units of the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimSet:
    """A set of units whose eviction makes room."""

    cost: float
    units: Sequence[EvictionUnit]


class SearchBudget:
    """The remaining trials of one search. None is left once the time of the cycle is over.

    Args:
        uid: uid of the gang that needs room.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self.exact = MAX_EXACT_TRIALS
        self.exchanges = MAX_EXCHANGES

    def has_second(self, identity: int) -> bool:
        """Return whether a second set may be searched in the domains from this one on."""
        return not is_late(f"second {self._uid} {identity}")

    @property
    def has_exact(self) -> bool:
        """True if the exact search may continue."""
        return self.exact > 0 and not is_late(f"exact {self._uid} {self.exact}")

    @property
    def has_exchanges(self) -> bool:
        """True if further exchanges may be tried."""
        return self.exchanges > 0 and not is_late(f"exchange {self._uid} {self.exchanges}")

    def ends(self, domains: int) -> bool:
        """Return whether no further domain is searched beside these."""
        return is_late(f"victims {self._uid} {domains}")


def least_victims(
    *, simulation: EvictionSimulation, candidates: Sequence[EvictionUnit], split: Split
) -> list[EvictionUnit] | None:
    """Return the cheapest permitted set of victims that was found.

    Args:
        simulation: the search for slots and the preemption policy, with nothing evicted.
        candidates: gangs, each as one unit.
        split: splits a candidate with surplus into units.

    Returns:
        The victims, sorted by uid; None if no permitted set makes room. Nothing is evicted in the
        simulation afterwards.
    """
    everywhere, budget = simulation.search.ids, SearchBudget(simulation.search.gang.uid)
    best: VictimSet | None = None
    # Phases 1 to 4 for each domain, the lowest bound first.
    unbounded = 0
    tried = scopes(simulation=simulation, candidates=candidates, split=split)
    for number, scope in enumerate(tried):
        if best is not None and (scope.floor >= best.cost or budget.ends(number)):
            break
        unbounded += best is not None and not scope.floor
        if unbounded > MAX_UNBOUNDED_SCOPES:
            break
        best = _in_scope(simulation=simulation, scope=scope, best=best, budget=budget)
    if best is None:
        return None
    # The set is minimal for its own domain. Another domain may fit with a part of the evictions.
    _evict_all(simulation, best.units)
    if len(everywhere) > 1:
        _minimise(simulation=simulation, scope=everywhere)
    victims = sorted(simulation.evicted.values(), key=lambda unit: (unit.uid, unit.step))
    simulation.restore_all()
    return victims


def _in_scope(
    *, simulation: EvictionSimulation, scope: Scope, best: VictimSet | None, budget: SearchBudget
) -> VictimSet | None:
    """Return the better of `best` and the cheapest set found in a scope."""
    if not simulation.domains_with_room_without(scope.inside, scope.ids):
        return best
    relevant = [*scope.inside, *scope.outside()]
    # Phases 2 and 3: evict greedily by the price of the nodes.
    free_nodes(simulation=simulation, ids=scope.ids, units=scope.inside)
    first = _completed(simulation=simulation, scope=scope, relevant=relevant)
    best = _cheaper(best, first)
    if best is not None and best.cost <= scope.floor:
        return best
    # The price of a node misjudges gangs that span nodes: evict greedily by the units' cost too.
    spans = any(len(unit.amounts) > 1 for unit in scope.inside)
    if first is None or (spans and budget.has_second(scope.ids[0])):
        most = MANY_TIMES * len(first.units) + MAX_WEIGHED if first else len(scope.inside)
        if _evict_cheapest(simulation=simulation, ids=scope.ids, units=scope.inside, most=most):
            second = _completed(simulation=simulation, scope=scope, relevant=relevant)
            best = _cheaper(best, second)
    # Phase 4: exact with few units, else by exchanges.
    if len(relevant) <= MAX_EXACT_CANDIDATES:
        exact = _exact(
            simulation=simulation, scope=scope, relevant=relevant, best=best, budget=budget
        )
        return _cheaper(best, exact)
    if best is None:
        return None
    return _exchange(
        simulation=simulation, scope=scope, relevant=relevant, best=best, budget=budget
    )


def _cheaper(best: VictimSet | None, other: VictimSet | None) -> VictimSet | None:
    if best is None or (other is not None and other.cost < best.cost):
        return other
    return best


def _completed(
    *, simulation: EvictionSimulation, scope: Scope, relevant: Sequence[EvictionUnit]
) -> VictimSet | None:
    """Return the evicted units as a set, completed for the quota and minimised.

    None if the pods do not fit or the quota does not suffice. All units are restored afterwards.
    """
    if not simulation.claim.holds():
        # The set makes room on nodes. Add units by cost for each GPU until the quota suffices, too.
        for unit in _in_order(relevant, key=lambda unit: unit.rate):
            if simulation.may_evict(unit):
                evict_if_permitted(simulation, unit)
                if simulation.claim.holds():
                    break
    victims = None
    if simulation.is_feasible(scope.ids):
        _minimise(simulation=simulation, scope=scope.ids)
        victims = _evicted(simulation)
    simulation.restore_all()
    return victims


def _evicted(simulation: EvictionSimulation) -> VictimSet:
    return VictimSet(cost=simulation.cost(), units=list(simulation.evicted.values()))


def _evict_cheapest(
    *, simulation: EvictionSimulation, ids: Sequence[int], units: Sequence[EvictionUnit], most: int
) -> bool:
    """Evict units by ascending cost until the pods fit.

    Returns:
        False if the pods do not fit after `most` units. All units are restored then.
    """
    ordered = _in_order(units, key=lambda unit: unit.order)
    stride = max(1, len(ordered) // 64)  # a check after each unit would cost more than it saves
    for count, unit in enumerate(ordered):
        if count % stride == 0 and simulation.domains_with_room(ids):
            return True
        if count >= most:
            break
        if simulation.may_evict(unit):
            evict_if_permitted(simulation, unit)
    else:
        return True
    simulation.restore_all()
    return False


def _in_order(
    units: Sequence[EvictionUnit], *, key: Callable[[EvictionUnit], tuple[object, ...]]
) -> list[EvictionUnit]:
    """Return units sorted by a key, but no unit before the earlier units of its gang.

    A unit's key is raised to the highest key of the units before it.
    """
    if not any(unit.step for unit in units):
        return sorted(units, key=key)
    highest: dict[str, tuple[object, ...]] = {}
    ranked: list[tuple[tuple[object, ...], int, int, EvictionUnit]] = []
    for position, unit in enumerate(sorted(units, key=lambda unit: unit.step)):
        raised = max(key(unit), highest.get(unit.uid, key(unit)))
        highest[unit.uid] = raised
        ranked.append((raised, unit.step, position, unit))
    return [unit for *_, unit in sorted(ranked, key=lambda entry: entry[:3])]


def evict_if_permitted(simulation: EvictionSimulation, unit: EvictionUnit) -> bool:
    """Evict a unit unless the preemption policy forbids it, and return whether it was evicted."""
    simulation.evict(unit)
    if simulation.claim.within_reach:
        return True
    simulation.restore(unit)
    return False


def _evict_all(simulation: EvictionSimulation, units: Iterable[EvictionUnit]) -> None:
    for unit in sorted(units, key=lambda unit: unit.step):
        simulation.evict(unit)


def _minimise(*, simulation: EvictionSimulation, scope: Sequence[int]) -> None:
    """Phase 3: restore each unit that is not necessary, most expensive first.

    The order favours restoring one expensive unit over several cheap ones. Restoring a reclaimed
    unit may make a unit of lower priority unnecessary that was necessary beside it (and the last
    unit of an elastic gang bars the units before it), so passes are repeated in these cases.
    """
    again = True
    while again:
        units = sorted(simulation.evicted.values(), key=lambda unit: unit.order, reverse=True)
        if simulation.is_plain:
            restored = _restore_each(simulation=simulation, scope=scope, units=units)
        else:
            restored = _restore_in_runs(simulation=simulation, scope=scope, units=units)
        left = simulation.evicted.values()
        again = restored and (
            len({unit.why for unit in left}) > 1 or any(unit.step for unit in left)
        )


def _restore_each(
    *, simulation: EvictionSimulation, scope: Sequence[int], units: Sequence[EvictionUnit]
) -> bool:
    """Restore units that are not necessary, one by one, and return whether there were any."""
    restored = False
    for unit in units:
        if not simulation.may_restore(unit) or simulation.is_needed(unit, scope):
            continue
        simulation.restore(unit)
        if simulation.is_feasible(scope):
            restored = True
        else:
            simulation.evict(unit)
            simulation.domains_with_room(scope)  # counts anew what `is_needed` reads
    return restored


def _restore_in_runs(
    *, simulation: EvictionSimulation, scope: Sequence[int], units: Sequence[EvictionUnit]
) -> bool:
    """Restore units that are not necessary in runs, and return whether there were any.

    Each run is twice as long as the one before it. If a run has a necessary unit, half of the run
    is tried, at last a single unit. The test whether role pods fit is costly.
    """
    restored, place, run = False, 0, 1
    while place < len(units):
        back: list[EvictionUnit] = []
        for unit in units[place : place + run]:
            if simulation.may_restore(unit):
                simulation.restore(unit)
                back.append(unit)
        if not back or simulation.is_feasible(scope):
            restored, place, run = restored or bool(back), place + run, 2 * run
            continue
        for unit in reversed(back):
            simulation.evict(unit)
        place += run == 1
        run = max(1, run // 2)
    return restored


def _exchange(
    *,
    simulation: EvictionSimulation,
    scope: Scope,
    relevant: Sequence[EvictionUnit],
    best: VictimSet,
    budget: SearchBudget,
) -> VictimSet:
    """Phase 4 with many units: exchange expensive victims for cheaper units while that helps.

    Example: victims cost 7 and 3, and a unit of cost 5 is not evicted. Instead of 7, 5 is tried:
    if the pods fit, the victims are 5 and 3, and 3 is restored if it is not necessary any more.
    """
    _evict_all(simulation, best.units)
    highest = max(unit.cost for unit in best.units)
    cheaper = sorted(
        (unit for unit in relevant if unit.cost < highest), key=lambda unit: unit.order
    )
    while budget.has_exchanges and _exchanged(
        simulation=simulation, scope=scope, cheaper=cheaper, budget=budget
    ):
        _minimise(simulation=simulation, scope=scope.ids)
    exchanged = _evicted(simulation)
    simulation.restore_all()
    return _cheaper(best, exchanged) or best


def _exchanged(
    *,
    simulation: EvictionSimulation,
    scope: Scope,
    cheaper: Sequence[EvictionUnit],
    budget: SearchBudget,
) -> bool:
    """Exchange the most expensive exchangeable victim, and return whether there was one."""
    for victim in sorted(simulation.evicted.values(), key=lambda unit: unit.order, reverse=True):
        if not simulation.may_restore(victim):
            continue
        simulation.restore(victim)
        # With enough quota a unit must free slots to help. Otherwise its quota alone may be enough.
        has_quota = simulation.claim.holds()
        # Try cheaper units in ascending order of cost. The first that
        # works is the cheapest exchange.
        for unit in cheaper:
            if unit.cost >= victim.cost or not budget.has_exchanges:
                break
            if (unit.uid, unit.step) in simulation.evicted or not simulation.may_evict(unit):
                continue
            budget.exchanges -= 1
            if has_quota and simulation.gain(unit) == 0:
                continue
            simulation.evict(unit)
            if simulation.is_feasible(scope.ids):
                return True
            simulation.restore(unit)
        simulation.evict(victim)
        if not budget.has_exchanges:
            return False
    return False


def _exact(
    *,
    simulation: EvictionSimulation,
    scope: Scope,
    relevant: Sequence[EvictionUnit],
    best: VictimSet | None,
    budget: SearchBudget,
) -> VictimSet | None:
    """Return the cheapest set below the cost of `best`, if there is one (phase 4, few units).

    Depth-first over all sets in the order of cost. A branch ends when its cost reaches the bound.
    """
    ordered = _in_order(relevant, key=lambda unit: unit.order)
    cheapest, bound = None, best.cost if best else float("inf")

    def extend(start: int, cost: float) -> None:
        nonlocal cheapest, bound
        for position in range(start, len(ordered)):
            unit = ordered[position]
            if not budget.has_exact:
                return
            # `_in_order` may put a cheaper unit behind, so the loop does not end here.
            if cost + unit.cost >= bound or not simulation.may_evict(unit):
                continue
            budget.exact -= 1
            simulation.evict(unit)
            if simulation.is_feasible(scope.ids):
                bound = cost + unit.cost
                cheapest = VictimSet(cost=bound, units=list(simulation.evicted.values()))
            else:
                extend(position + 1, cost + unit.cost)
            simulation.restore(unit)

    extend(0, 0.0)
    return cheapest
