"""Record the demand of waiting gangs that this cycle could not meet, and its effects.

Under the strict rule no gang passes a gang that waits for others to end. A gang that waits for
capacity blocks its pool. A gang that waits for quota blocks its queue in that pool. A gang at its
user limit blocks that user's gangs there. Under every rule, elastic gangs do not grow into unmet
demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from drumline_scheduler.decisions import INDEPENDENT_REASONS, BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Gang
from drumline_scheduler.quota.cohorts import QueueTree
from drumline_scheduler.rejections import Rejection

_WAITS_FOR_CAPACITY: Final = frozenset(
    {
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
    }
)
_NEAREST_FIRST: Final = (
    BlockReason.INSUFFICIENT_GPUS,
    BlockReason.INSUFFICIENT_RESOURCES,
    BlockReason.TOPOLOGY_DOES_NOT_FIT,
    BlockReason.WOULD_DELAY_RESERVATION,
    BlockReason.QUOTA_EXHAUSTED,
    BlockReason.USER_LIMIT,
    BlockReason.BEHIND_HIGHER_PRIORITY,
    *INDEPENDENT_REASONS,
)
"""Order of the reasons, the closest to a start first. Of a gang's rejections by several pools, the
first in this order is shown."""


class UnmetDemand:
    """The unmet demand of one cycle."""

    def __init__(self, *, tree: QueueTree, strict: bool) -> None:
        self._tree = tree
        self._strict = strict
        self._first: dict[tuple[str, ...], tuple[str, BlockReason]] = {}
        """The first gang that waits, by (pool), (pool, queue) or (pool, queue, user)."""
        self._wanted: set[tuple[int | None, str]] = set()
        """Demand by (root of the queue tree, pool). The root None stands for capacity, others for
        quota."""
        self._wanted_by_users: set[tuple[str, str, str]] = set()
        """Demand of users at their limit, by (queue, user, pool)."""

    @property
    def holds_any(self) -> bool:
        """True if a gang holds others back."""
        return bool(self._first)

    def is_behind(self, *, gang: Gang, pool: str) -> bool:
        """Return whether a gang is behind a blocking one in a pool."""
        return not self._first.keys().isdisjoint(_lines(gang, pool=pool))

    def behind(self, *, gang: Gang, pool: str) -> Rejection | None:
        """Return the rejection of a gang behind a blocking one; None: it may pass."""
        if not self._first:
            return None
        lines = _lines(gang, pool=pool)
        first = next((self._first[line] for line in lines if line in self._first), None)
        if first is None:
            return None
        key, reason = first
        return Rejection(
            reason=BlockReason.BEHIND_HIGHER_PRIORITY,
            message=f"waits behind {key}, which comes earlier and waits in pool {pool} ({reason})",
            blockers=(key,),
            needed=gang.gpus,
            remedy=Remedy(kind=RemedyKind.WAIT_FOR),
        )

    def reject(self, *, gang: Gang, rejections: Mapping[str, Rejection]) -> Rejection:
        """Record the demand of a gang by pool, and return the rejection to show."""
        rejection = min(
            rejections.values(), key=lambda candidate: _NEAREST_FIRST.index(candidate.reason)
        )
        for pool, candidate in rejections.items():
            self.want(gang=gang, pool=pool, reason=candidate.reason)
            if self._strict:
                self._hold_back(gang=gang, pool=pool, why=candidate.reason, shown=rejection.reason)
        return rejection

    def back_off(self, *, gang: Gang, pools: Iterable[str]) -> Rejection:
        """Return the rejection of a gang in its backoff, and record its demand for its pools."""
        self._wanted |= {(None, pool) for pool in pools}
        cause = gang.retry_cause or "its pods could not be created"
        return Rejection(
            reason=BlockReason.BACKING_OFF,
            message=f"waits before the next try: {cause}",
            needed=gang.gpus,
            remedy=Remedy(kind=RemedyKind.WAIT),
        )

    def want(self, *, gang: Gang, pool: str, reason: BlockReason) -> None:
        """Record the demand of a waiting gang.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            reason: why the gang cannot start.
        """
        if reason in _WAITS_FOR_CAPACITY:
            self._wanted.add((None, pool))
        elif reason is BlockReason.QUOTA_EXHAUSTED:
            self._wanted.add((self._root(gang), pool))
        elif reason is BlockReason.USER_LIMIT:
            self._wanted_by_users.add((gang.queue, gang.user, pool))

    def _hold_back(self, *, gang: Gang, pool: str, why: BlockReason, shown: BlockReason) -> None:
        """Block gangs that wait for the same capacity, quota or user limit."""
        # `setdefault` keeps the first gang: gangs are rejected in scheduling order.
        if why in _WAITS_FOR_CAPACITY:
            self._first.setdefault((pool,), (gang.key, shown))
        elif why is BlockReason.QUOTA_EXHAUSTED:
            self._first.setdefault((pool, gang.queue), (gang.key, shown))
        elif why is BlockReason.USER_LIMIT:
            self._first.setdefault((pool, gang.queue, gang.user), (gang.key, shown))

    def hold(self, *, gang: Gang, pools: Iterable[str]) -> None:
        """Block pools for the gangs behind a gang that is not tried in this cycle."""
        for pool in pools:
            self._first.setdefault((pool,), (gang.key, BlockReason.NOT_TRIED))

    def holds(self, pools: Iterable[str]) -> bool:
        """Return whether every gang of these pools is behind a blocking one."""
        return all((pool,) in self._first for pool in pools)

    def wants(self, *, gang: Gang, pool: str) -> bool:
        """Return whether a running gang would grow into unmet demand."""
        return (
            (None, pool) in self._wanted
            or (self._root(gang), pool) in self._wanted
            or (gang.queue, gang.user, pool) in self._wanted_by_users
        )

    def is_wanted(self, pool: str) -> bool:
        """Return whether there is unmet demand for capacity of a pool."""
        return (None, pool) in self._wanted

    def _root(self, gang: Gang) -> int:
        """Return the root of the gang's queue tree."""
        return self._tree.branches[self._tree.leaf_of[gang.queue]].path[-1]


def _lines(gang: Gang, *, pool: str) -> tuple[tuple[str, ...], ...]:
    """Return what a gang waits in line for: capacity, quota of its queue, its user's limit."""
    return (pool,), (pool, gang.queue), (pool, gang.queue, gang.user)
