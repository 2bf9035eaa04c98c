"""What one cycle leaves for the next, so that a cycle costs what changed since.

Everything here is derived from the arguments of earlier cycles and brought up to date by what
differs: objects that are the same (by identity) are taken to be unchanged, which holds of frozen
values. With and without a cache, and whatever it has seen before, the decisions are equal.

A cache serves one cycle at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drumline.scheduling.admitted_gangs import AdmittedGangs, running
from drumline.scheduling.model import Gang, Policy, Snapshot
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.queueing.blocked_cache import BlockedCache
from drumline.scheduling.queueing.equivalence_classes import EquivalenceClasses
from drumline.scheduling.queueing.pending_gangs import PendingGangs
from drumline.scheduling.snapshot_cache import SnapshotCache

_SLACK: Final = 1000
"""Kinds of gangs that are gone are kept for so many."""


class CycleCache:
    """Opaque to everybody but the cycle; a new one knows nothing."""

    def __init__(self) -> None:
        self._standing = SnapshotCache()
        """The cluster view of now."""
        self._running = running(())
        self._waiting = PendingGangs(EquivalenceClasses())
        self._capped: frozenset[str] = frozenset()
        self.notices = BlockedCache()

    def waiting(self, *, snapshot: Snapshot, pending: Iterable[Gang]) -> PendingGangs:
        """Those who wait now."""
        capped = frozenset(queue.name for queue in snapshot.queues if queue.user_limit)
        kinds = len(self._waiting.examples)
        if capped != self._capped or kinds > _SLACK + 2 * len(self._waiting.gangs):
            self._waiting, self._capped = PendingGangs(EquivalenceClasses(capped)), capped
            self.notices = BlockedCache()
        self._waiting.update(pending)
        return self._waiting

    def running(self, snapshot: Snapshot) -> AdmittedGangs:
        """Those who are admitted now."""
        if not self._running.are(snapshot.admitted):
            self._running = running(snapshot.admitted)
        return self._running

    def cluster_view(self, *, snapshot: Snapshot, policy: Policy) -> ClusterView:
        """The cluster view of now, for those who wait; nobody uses the one of the cycle before."""
        return self._standing.cluster_view(
            snapshot=snapshot, waiting=self._waiting.examples, policy=policy
        )
