"""What one user's jobs may hold of a queue, in GPUs of one pool.

A cap stands beside the quota and is never borrowed: whoever is at his own waits for his own jobs,
however much of the queue is free. Only a queue's own jobs count, not those of its members. Where a
cap was lowered under running jobs, nothing more of that user is admitted until he is below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from drumline.scheduling.quota.cohorts import QueueTree

UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """The accounts of all users in one pool. All moves are O(1)."""

    limits: Mapping[int, int]
    """By leaf, where there is a limit at all."""
    taken: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """By leaf and user."""

    def copy(self) -> UserLimits:
        """The same accounts, to be written on separately."""
        return replace(self, taken=dict(self.taken))

    def add(self, *, leaf: int, user: str, gpus: int) -> None:
        """Count GPUs (taken away: a negative number) for a user."""
        if leaf in self.limits:
            self.taken[leaf, user] = self.held(leaf=leaf, user=user) + gpus

    def held(self, *, leaf: int, user: str) -> int:
        """GPUs that a user's jobs hold in a queue with a limit."""
        return self.taken.get((leaf, user), 0)

    def room(self, *, leaf: int, user: str) -> int:
        """GPUs that a user may still take; negative where a cap was lowered below what he holds."""
        if leaf not in self.limits:
            return UNLIMITED
        return self.limits[leaf] - self.held(leaf=leaf, user=user)


def user_limits(*, tree: QueueTree, pool: str) -> UserLimits:
    """The caps of all queues in a pool, before anybody holds anything."""
    limited = {
        tree.leaf_of[name]: queue.user_limit[pool]
        for name, queue in tree.queues.items()
        if queue.user_limit is not None and pool in queue.user_limit
    }
    return UserLimits(limits=limited)
