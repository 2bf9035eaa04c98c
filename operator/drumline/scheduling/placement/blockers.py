"""Who has to leave a domain before some pods fit there, and how it is told.

They are found by imagining them gone, lowest priority and biggest first, then what is kept for
jobs that wait for victims, foreign pods last, and by letting back in whoever need not have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from drumline.scheduling.decisions import FOREIGN_PODS
from drumline.scheduling.minimal_subset import minimal_subset
from drumline.scheduling.placement.allocations import Allocation
from drumline.scheduling.placement.foreign_pods import (
    foreign_usage,
    nodes_with_foreign_pods,
    without_foreign_pods,
)
from drumline.scheduling.placement.hypothetical import HypotheticalCapacity
from drumline.scheduling.placement.pool_view import PoolView
from drumline.scheduling.placement.search import Search
from drumline.scheduling.placement.slots import SlotIndex
from drumline.scheduling.placement.topology import Domain
from drumline.scheduling.rejections import amount
from drumline.scheduling.undo import Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Somebody whose leaving may make room."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    """Of all resources, in the order of the axis."""
    held: Callable[[int], int]
    """How much of a resource, by its place on the axis, it holds in the domain."""
    verb: str
    rank: str
    leave: Callable[[], Undo]

    def text(self, resource: int) -> str:
        """`training/a holds 2 (priority 0)`; the unit stands with everything but GPUs."""
        name, count = self.names[resource], self.held(resource)
        what = amount(resource=name, count=count) if resource else str(count)
        return f"{', '.join(self.keys)} {self.verb} {what}{self.rank}"


def find_blockers(search: Search, identity: int) -> list[Blocker]:
    """The leavers that are necessary before a domain holds what is searched.

    Args:
        search: its own gang's pods never make room.
        identity: of the domain.
    """
    domain = search.domain(identity)
    return _gangs_alone(search, identity, domain) or _anybody(search, identity, domain)


def _gangs_alone(search: Search, identity: int, domain: Domain) -> list[Blocker]:
    """Counted without touching the view; nobody, where it takes others too or cannot be counted."""
    view = search.view
    if view.leaving or not HypotheticalCapacity.can_be(search):
        return []
    imagined = HypotheticalCapacity(search)
    blockers = minimal_subset(
        candidates=_gangs(view, search.gang.uid, domain, imagined.release),
        remove=lambda leaver: leaver.leave(),
        fits=lambda: imagined.holds(identity),
    )
    for leaver in blockers:
        leaver.leave()
    return blockers if imagined.holds(identity) else []


def _anybody(search: Search, identity: int, domain: Domain) -> list[Blocker]:
    view, index, own = search.view, search.index, search.gang.uid

    def fits() -> bool:
        index.catch_up()
        return search.holds(identity)

    leavers = chain(
        _gangs(view, own, domain, partial(_depart, view)),
        _kept(view, own, domain),
        _foreign(index, view, domain),
    )
    blockers = minimal_subset(candidates=leavers, remove=lambda leaver: leaver.leave(), fits=fits)
    index.catch_up()
    return blockers


def _depart(view: PoolView, allocation: Allocation) -> Undo:
    """Imagine a holder's places free, and whatever is kept of them for others withheld."""
    if allocation.gang.uid in view.leaving:
        return view.release(allocation)
    view.shift(allocation, sign=1)
    return partial(view.shift, allocation, sign=-1)


def _gangs(
    view: PoolView, own: str, domain: Domain, leave: Callable[[Allocation], Undo]
) -> Iterator[Blocker]:
    for allocation in view.allocations.in_eviction_order(domain):
        if allocation.gang.uid != own:
            yield Blocker(
                keys=(allocation.gang.key,),
                names=view.axis.names,
                held=partial(allocation.held_in, domain),
                verb="holds",
                rank=f" (priority {allocation.gang.priority})",
                leave=partial(leave, allocation),
            )


def _kept(view: PoolView, own: str, domain: Domain) -> Iterator[Blocker]:
    """What is kept for gangs that wait for their victims, taken together."""
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
            leave=lambda: view.withheld.release(ordinals),
        )


def _foreign(index: SlotIndex, view: PoolView, domain: Domain) -> Iterator[Blocker]:
    ordinals = [i for i in nodes_with_foreign_pods(view) if domain.start <= i < domain.stop]
    if ordinals:
        yield Blocker(
            keys=(FOREIGN_PODS,),
            names=view.axis.names,
            held=lambda resource: sum(
                foreign_usage(view, i)[resource] for i in ordinals if index.counted[i]
            ),
            verb="hold",
            rank="",
            leave=lambda: without_foreign_pods(view, ordinals),
        )
