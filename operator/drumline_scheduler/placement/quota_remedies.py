"""Complete the remedies of quota rejections, because the gang may also lack nodes.

A remedy is given only if the gang starts with it, all else unchanged. So if both quota and nodes
are missing, a quota increase alone is not a remedy. In addition to the gangs that hold the quota,
others may have to end. O(nodes of the gangs removed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.decisions import RemedyKind
from drumline_scheduler.model import Gang
from drumline_scheduler.placement.allocations import Allocation
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.hypothetical import HypotheticalCapacity
from drumline_scheduler.placement.placer import Placer
from drumline_scheduler.placement.search import Search
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.undo import Undo, minimal_subset


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRemedyChecker:
    """Completes quota rejections in the current view."""

    current: ClusterView
    placer: Placer
    explain: bool = True
    """False: rejections are returned as they are."""

    def complete(self, rejection: Rejection, *, gang: Gang, pool: str, pods: int) -> Rejection:
        """Return the rejection with all necessary blockers, or without a remedy.

        Args:
            rejection: the rejection of the gang for its quota.
            gang: the rejected gang.
            pool: the name of the pool.
            pods: number of main pods.
        """
        if rejection.remedy is None or not self.explain:
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
        return _with_further_blockers(rejection=rejection, more=more, search=search)


def _with_further_blockers(
    *, rejection: Rejection, more: Sequence[str], search: Search
) -> Rejection:
    """Return the rejection with further blockers whose nodes are needed as well."""
    for_job = search.view.allocations.for_job
    going = [allocation for key in rejection.blockers for allocation in for_job(key)]
    # A gang that moves inside the pool is listed twice: its allocation and its nomination.
    rest = [key for key in dict.fromkeys(more) if key not in rejection.blockers]
    further = [allocation for key in rest for allocation in for_job(key)]
    release, fits = _release_and_check(search=search, allocations=(*going, *further))
    # Remove the gangs that hold the quota, then the smallest set of others that makes room.
    undo = [release(allocation) for allocation in going]
    needed: list[str] = []
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


def _release_and_check(
    *, search: Search, allocations: Iterable[Allocation]
) -> tuple[Callable[[Allocation], Undo], Callable[[], bool]]:
    """Return a function that removes an allocation, and one that checks whether the pods fit."""
    leaving = search.view.leaving
    if HypotheticalCapacity.applies_to(search) and not any(
        allocation.gang.uid in leaving for allocation in allocations
    ):
        imagined = HypotheticalCapacity(search)
        return imagined.release, imagined.has_room
    return search.view.release, search.has_room
