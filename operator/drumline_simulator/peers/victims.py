"""Find the workloads that a workload preempts under Kueue's classic rules.

Candidates are workloads of lower priority in its own queue (`withinClusterQueue: LowerPriority`).
While it stays within its nominal quota, workloads of borrowing queues of its cohort are also
candidates (`reclaimWithinCohort: Any`). The order is: other queues first, then by priority, then
the youngest. Candidates are removed until the workload fits. Then, in reverse order, each is kept
if the workload still fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline_scheduler import Admitted, Gang, Reclaim, WithinQueue
from drumline_simulator.peers.node_room import NodeRoom
from drumline_simulator.peers.quota import KueueQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlaces:
    """Nodes of a pool by position."""

    pool: str
    places: tuple[str, ...]


def find_victims(
    gang: Gang, *, pool: str, quota: KueueQuota, room: NodeRoom, running: Sequence[Admitted]
) -> tuple[PoolPlaces, list[Admitted]] | None:
    """Return victims with which a workload fits a pool, and its places, or None.

    `quota` and `room` are unchanged afterwards.

    Args:
        gang: the gang to place.
        pool: name of the pool.
        quota: quota of all queues.
        room: free resources of all nodes.
        running: admitted workloads.
    """
    rule = quota.queues[gang.queue].preemption
    here = [held for held in running if held.pool == pool and not held.leaving]
    own = [
        held
        for held in here
        if rule.within_queue is WithinQueue.LOWER_PRIORITY
        and held.gang.queue == gang.queue
        and held.gang.priority < gang.priority
    ]
    borrowers: list[Admitted] = []
    if rule.reclaim is not Reclaim.NEVER:
        borrowers = [
            held
            for held in here
            if held.gang.queue != gang.queue
            and quota.are_cohort(held.gang.queue, gang.queue)
            and quota.borrows(held.gang.queue, pool=pool)
        ]
    search = _Search(gang, pool=pool, quota=quota, room=room)
    eviction = None
    # Above its nominal quota it would borrow whoever leaves: not looked for at all.
    if gang.gpus <= quota.nominal(gang.queue, pool=pool) and (own or borrowers):
        eviction = search.victims([*borrowers, *own], may_borrow=False)
    if eviction is None and own:
        eviction = search.victims(own, may_borrow=True)
    return eviction


class _Search:
    """Removes candidates and adds them again."""

    def __init__(self, gang: Gang, *, pool: str, quota: KueueQuota, room: NodeRoom) -> None:
        self._gang = gang
        self._pool = pool
        self._quota = quota
        self._room = room

    def victims(
        self, candidates: Sequence[Admitted], *, may_borrow: bool
    ) -> tuple[PoolPlaces, list[Admitted]] | None:
        """Return the victims among these, in Kueue's order."""
        taken: list[Admitted] = []
        places = None
        for held in sorted(candidates, key=self._order):
            if held.gang.queue != self._gang.queue and not self._quota.borrows(
                held.gang.queue, pool=self._pool
            ):
                continue
            self._remove(held)
            taken.append(held)
            places = self._places(may_borrow=may_borrow)
            if places is not None:
                break
        if places is not None:
            places = self._give_back_unneeded(taken, places=places, may_borrow=may_borrow)
        for held in taken:
            self._remove(held, times=-1)
        return None if places is None else (PoolPlaces(pool=self._pool, places=places), taken)

    def _give_back_unneeded(
        self, taken: list[Admitted], *, places: tuple[str, ...], may_borrow: bool
    ) -> tuple[str, ...]:
        for held in reversed(taken[:-1]):
            self._remove(held, times=-1)
            without = self._places(may_borrow=may_borrow)
            if without is None:
                self._remove(held)
            else:
                places = without
                taken.remove(held)
        return places

    def _places(self, *, may_borrow: bool) -> tuple[str, ...] | None:
        gang, quota = self._gang, self._quota
        if not quota.fits(gang.queue, pool=self._pool, gpus=gang.gpus):
            return None
        if not may_borrow and quota.borrows(gang.queue, pool=self._pool, gpus=gang.gpus):
            return None
        return self._room.places(gang, pool=self._pool, pods=gang.nodes)

    def _remove(self, held: Admitted, *, times: int = 1) -> None:
        self._quota.add(held.gang.queue, pool=held.pool, gpus=-times * held.gpus)
        self._room.take(held.gang, held.survivors, times=-times)

    def _order(self, held: Admitted) -> tuple[bool, int, float, str]:
        own = held.gang.queue == self._gang.queue
        return (own, held.gang.priority, -held.admitted_at, held.gang.uid)
