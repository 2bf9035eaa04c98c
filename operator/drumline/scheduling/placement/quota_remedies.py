"""Whether what a gang is told about its quota is enough: it may want for places too.

A remedy is only told if the gang starts with it, all else as it is. So where quota is short and no
places are free either, more quota alone is no remedy; and of those whose leaving would free quota,
some more may have to leave before there are places. O(places of those who leave).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from drumline.scheduling.decisions import RemedyKind
from drumline.scheduling.minimal_subset import minimal_subset
from drumline.scheduling.model import Gang
from drumline.scheduling.placement.allocations import Allocation
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.placement.hypothetical import HypotheticalCapacity
from drumline.scheduling.placement.placer import Placer
from drumline.scheduling.placement.search import Search
from drumline.scheduling.rejections import Rejection
from drumline.scheduling.undo import Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRemedyChecker:
    """Completes rejections for want of quota, in the current view."""

    current: ClusterView
    placer: Placer

    def complete(self, rejection: Rejection, *, gang: Gang, pool: str, pods: int) -> Rejection:
        """The rejection with all whose leaving is needed, or without a remedy.

        Args:
            rejection: what the gang would be told about its quota.
            gang: who was rejected.
            pool: where.
            pods: with how many main pods.
        """
        if rejection.remedy is None:
            return rejection
        search = self.current.search(gang=gang, pool=pool, pods=pods)
        if isinstance(search, Rejection):
            return replace(rejection, remedy=None)
        if self.placer.has_room(search):
            return rejection
        if rejection.remedy.kind is not RemedyKind.WAIT_FOR:
            return replace(rejection, remedy=None)
        nodes = self.placer.find(gang=gang, pool=pool, pods=pods)
        more = nodes.blockers if isinstance(nodes, Rejection) else ()
        return _with_further_blockers(rejection=rejection, more=more, search=search)


def _with_further_blockers(
    *, rejection: Rejection, more: Sequence[str], search: Search
) -> Rejection:
    """With those whose places are needed as well once the others are gone."""
    of_key = search.view.allocations.of_key
    going = [allocation for key in rejection.blockers if (allocation := of_key(key))]
    # Who moves inside the pool stands there twice: for what it holds, and for what is kept for it.
    rest = [key for key in dict.fromkeys(more) if key not in rejection.blockers]
    further = [allocation for key in rest if (allocation := of_key(key))]
    release, fits = _release_and_check(search=search, allocations=(*going, *further))
    undo = [release(allocation) for allocation in going]
    needed: list[str] = []
    if not fits():
        necessary = minimal_subset(candidates=further, remove=release, fits=fits)
        undo += [release(allocation) for allocation in necessary]
        # Foreign pods, and places that are kept for others, cannot be imagined gone: all then.
        needed = [allocation.gang.key for allocation in necessary] if fits() else rest
        if not needed:
            rejection = replace(rejection, remedy=None)
    for step in reversed(undo):
        step()
    return replace(rejection, blockers=(*rejection.blockers, *needed)) if needed else rejection


def _release_and_check(
    *, search: Search, allocations: Iterable[Allocation]
) -> tuple[Callable[[Allocation], Undo], Callable[[], bool]]:
    """How holders are imagined gone, and how to see whether there is room then."""
    leaving = search.view.leaving
    if HypotheticalCapacity.can_be(search) and not any(
        allocation.gang.uid in leaving for allocation in allocations
    ):
        imagined = HypotheticalCapacity(search)
        return imagined.release, imagined.has_room
    return search.view.release, search.has_room
