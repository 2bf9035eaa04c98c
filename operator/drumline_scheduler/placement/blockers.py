"""Find the gangs that must leave a domain before some pods fit there.

Candidates are removed from the view in this order: gangs with the lowest priority and most pods,
capacity withheld for nominated gangs, foreign pods. Then each candidate comes back if its removal
was not necessary. The work does not depend on the number of running gangs: of those in the domain,
the first `MOST_CANDIDATES` are considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import add, sub
from typing import Final

from drumline_scheduler.decisions import FOREIGN_PODS
from drumline_scheduler.placement.allocations import Allocation, Vector
from drumline_scheduler.placement.hypothetical import HypotheticalCapacity
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.placement.search import Search
from drumline_scheduler.placement.slots import SlotIndex
from drumline_scheduler.placement.topology import Domain
from drumline_scheduler.resources import amount
from drumline_scheduler.undo import CutShortError, Undo, minimal_subset
from drumline_scheduler.work import spend


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A holder of capacity that may make room by leaving."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    """Resource names, in the order of the axis."""
    held: Callable[[int], int]
    """Amount of a resource that it holds in the domain, by the resource's index on the axis."""
    verb: str
    rank: str
    remove: Callable[[], Undo]

    def text(self, resource: int) -> str:
        """Return `training/a holds 2 (priority 0)`, with a unit for everything but GPUs."""
        name, count = self.names[resource], self.held(resource)
        what = amount(resource=name, count=count) if resource else str(count)
        return f"{', '.join(self.keys)} {self.verb} {what}{self.rank}"


MOST_CANDIDATES: Final = 128
"""Gangs in one domain that may be removed before the search for blockers ends."""


def find_blockers(
    search: Search, identity: int, *, goes_on: Callable[[int], bool]
) -> list[Blocker] | None:
    """Return the smallest set of blockers without which a domain holds the pods.

    None if more than `MOST_CANDIDATES` gangs would have to be removed to find it.

    Args:
        search: the search; its own gang is never a blocker.
        identity: id of the domain.
        goes_on: returns whether to try another set. It gets the number of sets so far.

    Raises:
        CutShortError: `goes_on` returned False.
    """
    domain = search.domain(identity)
    return _blockers_among_gangs(search, identity, domain) or _any_blockers(
        search, identity, domain, goes_on=goes_on
    )


def _blockers_among_gangs(search: Search, identity: int, domain: Domain) -> list[Blocker]:
    """Return blockers among gangs, counted without changing the view.

    Empty if the pods do not fit even without all gangs.
    """
    view = search.view
    # With evictions in progress, a release changes what is withheld. Slot counts alone do not show
    # it.
    if view.leaving or not HypotheticalCapacity.applies_to(search):
        return []
    spend(MOST_CANDIDATES)
    hypothetical = HypotheticalCapacity(search)
    blockers = minimal_subset(
        candidates=islice(
            _gangs(view, search.gang.uid, domain, hypothetical.release), MOST_CANDIDATES
        ),
        remove=lambda candidate: candidate.remove(),
        fits=lambda: hypothetical.holds(identity),
    )
    for candidate in blockers:
        candidate.remove()
    return blockers if hypothetical.holds(identity) else []


def _any_blockers(
    search: Search, identity: int, domain: Domain, *, goes_on: Callable[[int], bool]
) -> list[Blocker] | None:
    view, index, own = search.view, search.index, search.gang.uid
    spend(MOST_CANDIDATES)
    was_enough, tries = False, 0

    def fits() -> bool:
        nonlocal was_enough, tries
        tries += 1
        if not goes_on(tries):
            raise CutShortError
        index.catch_up()
        fits = search.holds(identity)
        was_enough = was_enough or fits
        return fits

    gangs = list(islice(_gangs(view, own, domain, partial(_release, view)), MOST_CANDIDATES + 1))
    candidates = chain(
        gangs[:MOST_CANDIDATES], _kept(view, own, domain), _foreign(index, view, domain)
    )
    try:
        with view.withheld.unchanged():
            blockers = minimal_subset(
                candidates=candidates,
                remove=lambda candidate: candidate.remove(),
                fits=fits,
                in_runs=True,
            )
    finally:
        index.catch_up()
    return blockers if was_enough or len(gangs) <= MOST_CANDIDATES else None


def _release(view: PoolView, allocation: Allocation) -> Undo:
    """Free an allocation and return the undo. Capacity kept for nominated gangs stays withheld."""
    if allocation.gang.uid in view.leaving:
        return view.release(allocation)
    view.shift(allocation, sign=1)
    return partial(view.shift, allocation, sign=-1)


def _gangs(
    view: PoolView, own: str, domain: Domain, remove: Callable[[Allocation], Undo]
) -> Iterator[Blocker]:
    for allocation in view.allocations.in_eviction_order(domain):
        if allocation.gang.uid != own:
            yield Blocker(
                keys=(allocation.gang.key,),
                names=view.axis.names,
                held=partial(allocation.held_in, domain),
                verb="holds",
                rank=_rank(view, allocation),
                remove=partial(remove, allocation),
            )


def _rank(view: PoolView, allocation: Allocation) -> str:
    overdue = allocation.gang.uid in view.overdue
    return f" (priority {allocation.gang.priority}{', should have left' if overdue else ''})"


def hanging_pods(view: PoolView, domain: Domain) -> list[str]:
    """Return the pods in a domain that should have left: `team/old (finalizer x) on n1`."""
    hanging = view.tree.hanging
    inside = sorted(ordinal for ordinal in hanging if domain.start <= ordinal < domain.stop)
    return [f"{pod} on {view.tree.nodes[i].name}" for i in inside for pod in hanging[i]]


def _kept(view: PoolView, own: str, domain: Domain) -> Iterator[Blocker]:
    """Yield the capacity withheld for nominated gangs as one blocker, if there is any."""
    ordinals = view.withheld.among(range(domain.start, domain.stop))
    nominees = [held for uid, held in view.nominees.items() if uid != own]
    waiting = [held for held in nominees if not held.places.keys().isdisjoint(ordinals)]
    if waiting:
        yield Blocker(
            keys=tuple(sorted(held.gang.key for held in waiting)),
            names=view.axis.names,
            held=lambda resource: sum(held.held_in(domain, resource) for held in waiting),
            verb="will take",
            rank="",
            remove=lambda: view.withheld.release(ordinals),
        )


def _foreign(index: SlotIndex, view: PoolView, domain: Domain) -> Iterator[Blocker]:
    ordinals = [i for i in _nodes_with_foreign_pods(view) if domain.start <= i < domain.stop]
    if ordinals:
        yield Blocker(
            keys=(FOREIGN_PODS,),
            names=view.axis.names,
            held=lambda resource: sum(
                _foreign_usage(view, i)[resource] for i in ordinals if index.counted[i]
            ),
            verb="hold",
            rank="",
            remove=lambda: _without_foreign_pods(view, ordinals),
        )


def _foreign_usage(view: PoolView, ordinal: int) -> Vector:
    """Return the resources that foreign pods hold on a node."""
    return tuple(max(0, amount) for amount in view.used[ordinal])


def _nodes_with_foreign_pods(view: PoolView) -> list[int]:
    """Return the ordinals of nodes on which foreign pods hold anything."""
    return [ordinal for ordinal, used in enumerate(view.used) if max(used) > 0]


def _without_foreign_pods(view: PoolView, ordinals: Sequence[int]) -> Undo:
    """Free the resources that foreign pods hold on these nodes."""
    freed = [(ordinal, _foreign_usage(view, ordinal)) for ordinal in ordinals]
    for ordinal, foreign in freed:
        view.free[ordinal] = tuple(map(add, view.free[ordinal], foreign))
    view.log.extend(ordinals)

    def undo() -> None:
        for ordinal, foreign in freed:
            view.free[ordinal] = tuple(map(sub, view.free[ordinal], foreign))
        view.log.extend(ordinals)

    return undo
