"""Complete the remedies of quota rejections, because the gang may also lack nodes.

A remedy is given only if the gang starts with it, all else unchanged. So if both quota and nodes
are missing, a quota increase alone is not a remedy. In addition to the gangs that hold the quota,
others may have to end. O(nodes of the gangs removed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.decisions import RemedyKind
from drumline_scheduler.model import Gang
from drumline_scheduler.placement.allocations import Allocation
from drumline_scheduler.placement.cluster_view import ClusterView, CompletedRejection
from drumline_scheduler.placement.hypothetical import HypotheticalCapacity
from drumline_scheduler.placement.placer import Placer
from drumline_scheduler.placement.search import Search
from drumline_scheduler.placement.slots import SlotIndex
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.undo import Undo, minimal_subset


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRemedyChecker:
    """Completes quota rejections in the current view."""

    current: ClusterView
    placer: Placer
    explain: bool = True
    """False: rejections are returned as they are."""

    def search(self, *, gang: Gang, pool: str, pods: int) -> Search | None:
        """Return the search for a gang, if counting the slots of its nodes answers it.

        Args:
            gang: the gang.
            pool: the name of the pool.
            pods: number of main pods.
        """
        search = self.current.search(gang=gang, pool=pool, pods=pods)
        if isinstance(search, Rejection) or not HypotheticalCapacity.applies_to(search):
            return None
        return search

    def are_nodes_asked(self, rejection: Rejection) -> bool:
        """Return whether the nodes decide what a rejection for quota becomes."""
        return self.explain and rejection.remedy is not None

    def completed(self, rejection: Rejection, search: Search) -> Rejection | None:
        """Return what `complete` has made of a rejection, if nodes were missing too."""
        known = self.current.completed.get((search.gang.queue, search.question))
        return known.rejection if known is not None and known.quota is rejection else None

    def complete(self, rejection: Rejection, *, gang: Gang, pool: str, pods: int) -> Rejection:
        """Return the rejection with all necessary blockers, or without a remedy.

        Args:
            rejection: the rejection of the gang for its quota.
            gang: the rejected gang.
            pool: the name of the pool.
            pods: number of main pods.
        """
        if rejection.remedy is None or not self.are_nodes_asked(rejection):
            return rejection
        search = self.current.search(gang=gang, pool=pool, pods=pods)
        if isinstance(search, Rejection):
            return replace(rejection, remedy=None)
        # Nodes are available, so the quota remedy alone is enough.
        if self.placer.has_room(search):
            return rejection
        # Nodes are missing too. More quota would not help, but the end of further gangs may.
        if rejection.remedy.kind is not RemedyKind.WAIT_FOR:
            return replace(rejection, remedy=None)
        nodes = self.placer.find(gang=gang, pool=pool, pods=pods)
        more = nodes.blockers if isinstance(nodes, Rejection) else ()
        return self._with_further_blockers(rejection, more=more, search=search)

    def _with_further_blockers(
        self, rejection: Rejection, *, more: tuple[str, ...], search: Search
    ) -> Rejection:
        """Return the rejection with further blockers whose nodes are needed as well."""
        view, completed = search.view, self.current.completed
        for_job = view.allocations.for_job
        going = [allocation for key in rejection.blockers for allocation in for_job(key)]
        # A gang that moves inside the pool is listed twice: its allocation and its nomination.
        rest = [key for key in dict.fromkeys(more) if key not in rejection.blockers]
        further = [allocation for key in rest for allocation in for_job(key)]
        if view.leaving or not HypotheticalCapacity.applies_to(search):
            imagined = _in_view(search, allocations=(*going, *further))
            with view.withheld.unchanged():
                return _completed(
                    rejection, going=going, further=further, rest=rest, imagined=imagined
                )
        # Slots on the nodes of these gangs decide. While they are the same, so is the answer.
        key, read = (search.gang.queue, search.question), _read(search, (*going, *further))
        known = completed.get(key)
        if known is not None and known.holds_for(rejection, more=more, read=read):
            return known.rejection
        imagined = HypotheticalCapacity(search)
        result = _completed(rejection, going=going, further=further, rest=rest, imagined=imagined)
        completed[key] = CompletedRejection(
            rejection=result, quota=rejection, blockers=more, read=read
        )
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class GangsInTheWay:
    """The gangs that a rejection for quota names, and the slots around them."""

    index: SlotIndex
    depth: int
    keys: frozenset[str]
    ordinals: frozenset[int]
    """Their nodes."""
    slots: Mapping[int, int]
    """Slots of the domains of these nodes, by id."""

    @staticmethod
    def of(search: Search, *, keys: Iterable[str]) -> GangsInTheWay:
        """Return the gangs with these keys, as they are now."""
        index, depth, names = search.index, search.depth, frozenset(keys)
        for_job = search.view.allocations.for_job
        ordinals = frozenset(i for key in names for each in for_job(key) for i in each.amounts)
        index.catch_up()
        domain_of, slots = index.tree.domain_of[depth], index.slots[depth]
        return GangsInTheWay(
            index=index,
            depth=depth,
            keys=names,
            ordinals=ordinals,
            slots={domain: int(slots[domain]) for domain in {domain_of[i] for i in ordinals}},
        )

    def is_same(self, *, nodes: set[int], keys: set[str]) -> bool:
        """Return whether changes of some nodes and gangs concern none of these gangs and slots."""
        self.index.catch_up()
        slots = self.index.slots[self.depth]
        return (
            self.keys.isdisjoint(keys)
            and self.ordinals.isdisjoint(nodes)
            and all(slots[domain] == count for domain, count in self.slots.items())
        )


def _completed(
    rejection: Rejection,
    *,
    going: Sequence[Allocation],
    further: Sequence[Allocation],
    rest: Sequence[str],
    imagined: HypotheticalCapacity | _Removal,
) -> Rejection:
    """Return the rejection with the further gangs that must leave.

    Args:
        rejection: the rejection for the quota.
        going: allocations of the gangs that hold the quota.
        further: allocations of the other blockers.
        rest: keys of the other blockers.
        imagined: removes allocations, and checks whether the pods fit.
    """
    release, fits = imagined.release, imagined.has_room
    # Remove the gangs that hold the quota, then the smallest set of others that makes room.
    undo = [release(allocation) for allocation in going]
    needed: Sequence[str] = []
    if not fits():
        necessary = minimal_subset(candidates=further, remove=release, fits=fits)
        undo += [release(allocation) for allocation in necessary]
        # Foreign pods and withheld capacity cannot be removed here: name all blockers then.
        keys = dict.fromkeys(allocation.gang.key for allocation in necessary)
        needed = list(keys) if fits() else rest
        if not needed:
            rejection = replace(rejection, remedy=None)
    for step in reversed(undo):
        step()
    return replace(rejection, blockers=(*rejection.blockers, *needed)) if needed else rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removal:
    """Removes allocations from the view itself, where counting slots is not enough."""

    release: Callable[[Allocation], Undo]
    has_room: Callable[[], bool]


def _in_view(
    search: Search, *, allocations: Sequence[Allocation]
) -> HypotheticalCapacity | _Removal:
    """Return how to remove allocations while gangs leave, or for a search with roles or slices."""
    leaving = search.view.leaving
    if HypotheticalCapacity.applies_to(search) and not any(
        allocation.gang.uid in leaving for allocation in allocations
    ):
        return HypotheticalCapacity(search)
    return _Removal(release=search.view.release, has_room=search.has_room)


def _read(search: Search, allocations: Sequence[Allocation]) -> tuple[object, ...]:
    """Return everything that decides whether pods fit once these gangs have left."""
    index, depth = search.index, search.depth
    index.catch_up()
    ordinals = [ordinal for allocation in allocations for ordinal in allocation.amounts]
    domains = {index.tree.domain_of[depth][ordinal] for ordinal in ordinals}
    slots = index.slots[depth]
    return (
        tuple(map(id, allocations)),
        [index.free[ordinal] for ordinal in ordinals],
        [index.counted[ordinal] for ordinal in ordinals],
        [int(slots[domain]) for domain in sorted(domains)],
        allocations,  # so that no other object gets one of their ids
    )
