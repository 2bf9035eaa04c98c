"""What one cycle leaves for the next, so that a cycle costs what changed since.

Everything here is derived from the arguments of earlier cycles and brought up to date by what
differs: objects that are the same (by identity) are taken to be unchanged, which holds of frozen
values. With and without a memory, and whatever it has seen before, the decisions are equal.

A memory serves one cycle at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drumline.scheduling.admitted_gangs import Running, running
from drumline.scheduling.model import Gang, Policy, Snapshot
from drumline.scheduling.placement.cluster_view import Picture
from drumline.scheduling.queueing.blocked_cache import Notices
from drumline.scheduling.queueing.equivalence_classes import Kinds
from drumline.scheduling.queueing.pending_gangs import Waiting
from drumline.scheduling.snapshot_cache import Standing

_SLACK: Final = 1000
"""Kinds of gangs that are gone are kept for so many."""


class Memory:
    """Opaque to everybody but the cycle; a new one knows nothing."""

    def __init__(self) -> None:
        self._standing = Standing()
        """The picture of now."""
        self._running = running(())
        self._waiting = Waiting(Kinds())
        self._capped: frozenset[str] = frozenset()
        self.notices = Notices()

    def waiting(self, *, snapshot: Snapshot, pending: Iterable[Gang]) -> Waiting:
        """Those who wait now."""
        capped = frozenset(queue.name for queue in snapshot.queues if queue.user_limit)
        kinds = len(self._waiting.examples)
        if capped != self._capped or kinds > _SLACK + 2 * len(self._waiting.gangs):
            self._waiting, self._capped = Waiting(Kinds(capped)), capped
            self.notices = Notices()
        self._waiting.update(pending)
        return self._waiting

    def running(self, snapshot: Snapshot) -> Running:
        """Those who are admitted now."""
        if not self._running.are(snapshot.admitted):
            self._running = running(snapshot.admitted)
        return self._running

    def picture(self, *, snapshot: Snapshot, policy: Policy) -> Picture:
        """The picture of now, for those who wait; nobody uses the one of the cycle before."""
        return self._standing.picture(
            snapshot=snapshot, waiting=self._waiting.examples, policy=policy
        )
