"""State that one cycle leaves for the next, so that a cycle costs only what changed since.

All of it is derived from the arguments of earlier cycles and updated by the differences. Objects
that are identical count as unchanged, which is true of frozen values. The decisions are the same
with and without a cache, whatever the cache has seen before.

A cache serves one cycle at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drumline_scheduler.admitted_gangs import AdmittedGangs, admitted_gangs
from drumline_scheduler.model import Gang, Policy, Snapshot
from drumline_scheduler.offered_nodes import OfferedNodes
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.queueing.blocked_cache import BlockedCache
from drumline_scheduler.queueing.equivalence_classes import EquivalenceClasses
from drumline_scheduler.queueing.kept_rejections import RejectionStore
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.snapshot_cache import SnapshotCache

_SLACK: Final = 1000
"""Number of equivalence classes without pending gangs that are kept."""


class CycleCache:
    """Caches of earlier cycles. Only the cycle uses its content. Empty at first."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, because a failed cycle may have left it in the middle of a change."""
        self._snapshots = SnapshotCache()
        self._admitted = admitted_gangs(())
        self._pending = PendingGangs(EquivalenceClasses())
        self.blocked = BlockedCache()
        self.rejections = RejectionStore()
        self.offered_nodes = OfferedNodes()
        self._what_if: tuple[CycleCache, CycleCache] | None = None

    @property
    def what_if(self) -> tuple[CycleCache, CycleCache]:
        """The caches for clusters with requested nodes, and for those with more nodes.

        Such clusters resemble those of the last cycle more than the real one.
        """
        if self._what_if is None:
            self._what_if = (CycleCache(), CycleCache())
        return self._what_if

    def pending(self, *, snapshot: Snapshot, pending: Iterable[Gang]) -> PendingGangs:
        """Return the pending gangs, sorted.

        Raises:
            InvalidSnapshotError: a gang is listed twice.
        """
        # Users are part of a class only in queues that limit them. Too many empty classes start the
        # cache anew.
        limited = frozenset(queue.name for queue in snapshot.queues if queue.limits_users)
        classes = len(self._pending.classes.examples)
        if classes > _SLACK + 2 * len(self._pending.gangs):
            self._pending, self.blocked = PendingGangs(EquivalenceClasses()), BlockedCache()
        self._pending.update(pending, user_limited=limited)
        return self._pending

    def admitted(self, snapshot: Snapshot) -> AdmittedGangs:
        """Return the running gangs, sorted by what they need."""
        if not self._admitted.are_same(snapshot.admitted):
            self._admitted = admitted_gangs(snapshot.admitted)
        return self._admitted

    def cluster_view(self, *, snapshot: Snapshot, policy: Policy) -> ClusterView:
        """Return the current view of the cluster.

        The view of the last cycle is invalid afterwards.
        """
        return self._snapshots.cluster_view(
            snapshot=snapshot, wanted=self._pending.classes.requested, policy=policy
        )

    def has_quota(self, gang: Gang, pool: str, size: int) -> bool:
        """Return whether quota allowed a gang `size` main pods when the last cycle began."""
        return self._snapshots.has_quota(gang, pool=pool, size=size)
