"""Limits on the GPUs of one pool that the jobs of one user may hold in a queue.

A limit applies in addition to the quota and is never borrowed. A user at the limit waits for their
own jobs, however much of the queue is free. It counts the queue's own jobs, not those of its
members. If a limit was lowered below the usage, nothing more of that user is admitted until usage
is below it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from drumline_scheduler.quota.cohorts import QueueTree

UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits and usage of all users in one pool. All changes are O(1)."""

    limits: Mapping[int, int]
    """Limit by leaf, for queues with a limit."""
    taken: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """Usage by leaf and user."""

    def copy(self) -> UserLimits:
        """Return the same limits and usage, to be changed separately."""
        return replace(self, taken=dict(self.taken))

    def add(self, *, leaf: int, user: str, gpus: int) -> None:
        """Add GPUs (a negative number removes them) to the usage of a user.

        Args:
            leaf: index of the queue in the tree.
            user: the user who pays.
            gpus: GPUs, or parts in a partitioned pool.
        """
        # Usage is counted only in queues that have a limit.
        if leaf in self.limits:
            self.taken[leaf, user] = self.held(leaf=leaf, user=user) + gpus

    def held(self, *, leaf: int, user: str) -> int:
        """Return the GPUs that a user's jobs hold in a queue with a limit."""
        return self.taken.get((leaf, user), 0)

    def room(self, *, leaf: int, user: str) -> int:
        """Return the GPUs that a user may still take; negative if above a lowered limit."""
        if leaf not in self.limits:
            return UNLIMITED
        return self.limits[leaf] - self.held(leaf=leaf, user=user)


def user_limits(*, tree: QueueTree, pool: str) -> UserLimits:
    """Return the limits of all queues in a pool, without usage."""
    limited = {
        tree.leaf_of[name]: queue.user_limit[pool]
        for name, queue in tree.queues.items()
        if queue.user_limit is not None and pool in queue.user_limit
    }
    return UserLimits(limits=limited)
