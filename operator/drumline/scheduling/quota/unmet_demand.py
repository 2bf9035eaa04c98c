"""Those who wait, as far as others have to mind them.

Under the strict rule nobody passes a gang that others' leaving will help: one that waits for
capacity holds its pool, one that waits for quota holds its queue in that pool, one whose user has
too much holds that user's jobs there. Under every rule, elastic gangs do not grow into what
somebody waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from drumline.scheduling.decisions import BlockReason, Remedy, RemedyKind
from drumline.scheduling.model import Gang
from drumline.scheduling.quota.cohorts import QueueTree
from drumline.scheduling.rejections import Rejection

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
    BlockReason.NODES_UNAVAILABLE,
    BlockReason.EXCEEDS_CLUSTER,
    BlockReason.EXCEEDS_QUOTA,
    BlockReason.NO_QUOTA_IN_POOL,
    BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
)
"""Of several pools' rejections, the one that is nearest to a start is told."""


class UnmetDemand:
    """Who waits for what in one cycle."""

    def __init__(self, *, tree: QueueTree, strict: bool) -> None:
        self._tree = tree
        self._strict = strict
        self._first: dict[tuple[str, ...], tuple[str, BlockReason]] = {}
        """By (pool), (pool, queue) or (pool, queue, user): the first gang that waits there."""
        self._wanted: set[tuple[int | None, str]] = set()
        """By (root of the queue's tree, pool), with None for all: where somebody waits."""
        self._wanted_by_users: set[tuple[str, str, str]] = set()
        """By (queue, user, pool): who waits for his own jobs."""

    @property
    def holding_back(self) -> int:
        """How many gangs hold others back; it rises with each new one."""
        return len(self._first)

    def behind(self, *, gang: Gang, pool: str) -> Rejection | None:
        """The rejection of a gang that may not pass another one."""
        if not self._first:
            return None
        line = (pool, gang.queue, gang.user)
        first = next((self._first[line[:n]] for n in (1, 2, 3) if line[:n] in self._first), None)
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
        """The rejection of a gang that waits in some pools, and what it means for others."""
        rejection = min(
            rejections.values(), key=lambda candidate: _NEAREST_FIRST.index(candidate.reason)
        )
        for pool, candidate in rejections.items():
            self.want(gang=gang, pool=pool, reason=candidate.reason)
            if self._strict:
                self._hold_back(gang=gang, pool=pool, why=candidate.reason, shown=rejection.reason)
        return rejection

    def back_off(self, *, gang: Gang, pools: Iterable[str]) -> Rejection:
        """The rejection of a gang whose last try was rejected; it will want its pools again."""
        self._wanted |= {(None, pool) for pool in pools}
        cause = gang.retry_cause or "its pods could not be created"
        return Rejection(
            reason=BlockReason.BACKING_OFF,
            message=f"waits before the next try: {cause}",
            needed=gang.gpus,
            remedy=Remedy(kind=RemedyKind.WAIT),
        )

    def want(self, *, gang: Gang, pool: str, reason: BlockReason) -> None:
        """Note what a gang waits for."""
        if reason in _WAITS_FOR_CAPACITY:
            self._wanted.add((None, pool))
        elif reason is BlockReason.QUOTA_EXHAUSTED:
            self._wanted.add((self._root(gang), pool))
        elif reason is BlockReason.USER_LIMIT:
            self._wanted_by_users.add((gang.queue, gang.user, pool))

    def _hold_back(self, *, gang: Gang, pool: str, why: BlockReason, shown: BlockReason) -> None:
        """Let nobody pass who waits for the same."""
        if why in _WAITS_FOR_CAPACITY:
            self._first.setdefault((pool,), (gang.key, shown))
        elif why is BlockReason.QUOTA_EXHAUSTED:
            self._first.setdefault((pool, gang.queue), (gang.key, shown))
        elif why is BlockReason.USER_LIMIT:
            self._first.setdefault((pool, gang.queue, gang.user), (gang.key, shown))

    def wants(self, *, gang: Gang, pool: str) -> bool:
        """Whether somebody waits for what a running gang would grow into."""
        return (
            (None, pool) in self._wanted
            or (self._root(gang), pool) in self._wanted
            or (gang.queue, gang.user, pool) in self._wanted_by_users
        )

    def is_wanted(self, pool: str) -> bool:
        """Whether somebody waits for capacity of a pool."""
        return (None, pool) in self._wanted

    def _root(self, gang: Gang) -> int:
        """The root of the queue tree in which a gang's GPUs count."""
        return self._tree.branches[self._tree.leaf_of[gang.queue]].path[-1]
