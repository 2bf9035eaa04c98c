"""Which running gangs have to go so that some pods fit, at the least cost.

The domain and its victims are chosen together: for each domain that could hold the pods if all
candidates left it, a set of victims is found, and the cheapest of these sets is taken.

* A first set, the better of two: nodes by the cost of freeing them for each pod that then fits, or
  gangs by their cost; then whatever else the quota needs, by cost for each GPU; then every victim
  comes back, dearest first, that need not go.
* Where few candidates matter, all sets that are cheaper are tried: the result is the optimum.

In the end, every victim is necessary: without its leaving there is no place anywhere (I6). All
moves are made on the picture of soon and undone. O(candidates) moves for each domain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import add
from typing import Final

from drumline.scheduling.claim import Claim
from drumline.scheduling.decisions import VictimReason
from drumline.scheduling.model import Admitted
from drumline.scheduling.search import Search
from drumline.scheduling.view import Holder, Undo

MAX_EXACT_CANDIDATES: Final = 12
MAX_EXACT_TRIALS: Final = 3000
"""For one search, all domains together: it bounds the time of a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A running gang that may be sent away for the one that asks."""

    held: Admitted
    holder: Holder
    leaf: int
    cost: float
    why: VictimReason

    @property
    def order(self) -> tuple[float, str]:
        """Cheapest first, then by uid."""
        return (self.cost, self.held.gang.uid)

    @property
    def rate(self) -> tuple[bool, float, str]:
        """Cheapest for each GPU first; those without GPUs last."""
        return (not self.held.gpus, self.cost / (self.held.gpus or 1), self.held.gang.uid)


class Trial:
    """The victims picked so far, on the picture of soon."""

    def __init__(self, *, search: Search, claim: Claim) -> None:
        self.search = search
        self.claim = claim
        self.gone: dict[str, Candidate] = {}
        self._undo: dict[str, Undo] = {}

    def evict(self, one: Candidate) -> None:
        """Let a candidate go."""
        uid = one.held.gang.uid
        self.gone[uid] = one
        self._undo[uid] = self.search.view.release(one.holder)
        self.claim.take(leaf=one.leaf, gpus=one.held.gpus, user=one.held.gang.user)

    def restore(self, one: Candidate) -> None:
        """Let it come back."""
        uid = one.held.gang.uid
        del self.gone[uid]
        self._undo.pop(uid)()
        self.claim.give_back(leaf=one.leaf, gpus=one.held.gpus, user=one.held.gang.user)

    def restore_all(self) -> None:
        """Let everybody come back."""
        for one in list(self.gone.values()):
            self.restore(one)

    def roomy(self, ids: Iterable[int]) -> list[int]:
        """Those of some domains that can hold the pods."""
        return self.search.roomy(ids)

    def enough(self, ids: Iterable[int]) -> bool:
        """Whether the gang may and can take places in one of some domains."""
        return self.claim.holds() and bool(self.roomy(ids))

    def cost(self) -> float:
        """Of all who are gone."""
        return sum(one.cost for one in sorted(self.gone.values(), key=lambda one: one.order))


def least_victims(*, trial: Trial, candidates: Sequence[Candidate]) -> list[Candidate] | None:
    """The cheapest lawful victims found, by uid; None if no set of candidates makes room."""
    everywhere = trial.search.ids
    scopes = [everywhere] if trial.roomy(everywhere) else _promising(trial, candidates)
    best: tuple[float, list[Candidate]] | None = None
    trials = MAX_EXACT_TRIALS
    for scope in scopes:
        inside = _inside(trial=trial, scope=scope, candidates=candidates)
        relevant = inside if trial.claim.is_unconditional else candidates
        for pick in (_free_nodes, _cheapest):
            pick(trial=trial, scope=scope, candidates=inside)
            found = _settle(trial=trial, scope=scope, candidates=relevant)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if len(relevant) <= MAX_EXACT_CANDIDATES:
            better, trials = _exact(trial, scope, relevant, bound=best, trials=trials)
            best = better or best
    if best is None:
        return None
    for one in best[1]:
        trial.evict(one)
    _spare(trial=trial, scope=everywhere)
    victims = sorted(trial.gone.values(), key=lambda one: one.held.gang.uid)
    trial.restore_all()
    return victims


def _promising(trial: Trial, candidates: Sequence[Candidate]) -> list[list[int]]:
    """The domains that could hold the pods if all candidates were gone."""
    for one in candidates:
        trial.evict(one)
    found = [[identity] for identity in trial.roomy(trial.search.ids)]
    trial.restore_all()
    return found


def _inside(
    *, trial: Trial, scope: Sequence[int], candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Whoever holds places in the scope."""
    domain_of, wanted = trial.search.view.tree.domain_of[trial.search.depth], set(scope)
    return [one for one in candidates if any(domain_of[i] in wanted for i in one.holder.places)]


def _settle(
    *, trial: Trial, scope: Sequence[int], candidates: Sequence[Candidate]
) -> tuple[float, list[Candidate]] | None:
    """Cost and victims of a first pick, once it has the quota and nobody is gone in vain."""
    for one in sorted(candidates, key=lambda one: one.rate):
        if trial.claim.holds():
            break
        if one.held.gang.uid not in trial.gone:
            _evict_if_lawful(trial, one)
    found = None
    if trial.enough(scope):
        _spare(trial=trial, scope=scope)
        found = (trial.cost(), list(trial.gone.values()))
    trial.restore_all()
    return found


def _cheapest(*, trial: Trial, scope: Sequence[int], candidates: Sequence[Candidate]) -> None:
    """Evict the cheapest ones until all fit."""
    for one in sorted(candidates, key=lambda one: one.order):
        if trial.roomy(scope):
            return
        _evict_if_lawful(trial, one)


def _evict_if_lawful(trial: Trial, one: Candidate) -> bool:
    trial.evict(one)
    if trial.claim.within_reach:
        return True
    trial.restore(one)
    return False


def _free_nodes(*, trial: Trial, scope: Sequence[int], candidates: Sequence[Candidate]) -> None:
    """Evict node by node, the cheapest for each pod that then fits, until all fit."""
    tree, depth = trial.search.view.tree, trial.search.depth
    inside = set(scope)
    on_node: dict[int, dict[str, Candidate]] = defaultdict(dict)
    for one in candidates:
        for ordinal in one.holder.places:
            if tree.domain_of[depth][ordinal] in inside and trial.search.index.open[ordinal]:
                on_node[ordinal][one.held.gang.uid] = one
    heap = [(_price(trial, ordinal, there), ordinal) for ordinal, there in on_node.items()]
    heapify(heap)
    while heap and not trial.roomy(scope):
        price, ordinal = heappop(heap)
        there = on_node[ordinal]
        if price == float("inf") or price != _price(trial, ordinal, there):
            continue  # of no use, or a newer entry tells its price
        touched: set[int] = set()
        for one in sorted(there.values(), key=lambda one: one.order):
            _evict_if_lawful(trial, one)
            for other in one.holder.places:
                if on_node.get(other, {}).pop(one.held.gang.uid, None):
                    touched.add(other)
        for other in sorted(touched - {ordinal}):
            heappush(heap, (_price(trial, other, on_node[other]), other))


def _price(trial: Trial, ordinal: int, there: Mapping[str, Candidate]) -> float:
    """What a pod costs on a node whose candidates all leave."""
    view, shape = trial.search.view, trial.search.shape
    free = whole = view.free[ordinal]
    for one in there.values():
        whole = tuple(map(add, whole, one.holder.amounts[ordinal]))
    gain = shape.slots_in(whole) - shape.slots_in(free)
    cost = sum(one.cost for one in sorted(there.values(), key=lambda one: one.order))
    return cost / gain if gain else float("inf")


def _spare(*, trial: Trial, scope: Sequence[int]) -> None:
    """Let everybody come back who need not have gone, dearest first."""
    spared = True
    while spared:  # who was needed beside a reclaimed one may not be needed without it
        spared = False
        for one in sorted(trial.gone.values(), key=lambda one: one.order, reverse=True):
            trial.restore(one)
            if trial.enough(scope):
                spared = True
            else:
                trial.evict(one)
        spared = spared and len({one.why for one in trial.gone.values()}) > 1


def _exact(
    trial: Trial,
    scope: Sequence[int],
    candidates: Sequence[Candidate],
    *,
    bound: tuple[float, list[Candidate]] | None,
    trials: int,
) -> tuple[tuple[float, list[Candidate]] | None, int]:
    """The cheapest set that is cheaper than a known one, and how many trials are left then."""
    line = sorted(candidates, key=lambda one: one.order)
    best, best_cost = None, bound[0] if bound else float("inf")

    def widen(start: int, cost: float) -> None:
        nonlocal best, best_cost, trials
        for position in range(start, len(line)):
            one = line[position]
            if cost + one.cost >= best_cost or not trials:
                return
            trials -= 1
            trial.evict(one)
            if trial.enough(scope):
                best, best_cost = (cost + one.cost, list(trial.gone.values())), cost + one.cost
            else:
                widen(position + 1, cost + one.cost)
            trial.restore(one)

    widen(0, 0.0)
    return best, trials
