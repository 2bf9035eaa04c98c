"""Lines of waiting gangs: one per pool and root queue. Pure: no I/O, no clock.

Gangs of one root queue compete for its quota in a pool. A gang that may use several pools stands in
a line of each.

    queue eta (no parent), queues nlp and vision (parent lab), pool h100:
    lines (eta, h100) and (lab, h100)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from drumline_scheduler.decisions import NEVER_FITS, BlockReason
from drumline_scheduler.model import Gang, Snapshot
from drumline_scheduler.quota.cohorts import parents_of
from drumline_scheduler.quota.pool_selection import requested_pools

CANNOT_START: Final = NEVER_FITS | frozenset(
    {
        BlockReason.QUEUE_NOT_FOUND,
        BlockReason.NAMESPACE_NOT_ALLOWED,
        BlockReason.NAMESPACE_TERMINATING,
        BlockReason.CLAIM_IN_USE,
        BlockReason.PRIORITY_TOO_HIGH,
        BlockReason.QUEUE_HELD,
        BlockReason.POOL_NOT_FOUND,
        BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
        BlockReason.NO_QUOTA_IN_POOL,
        BlockReason.RESOURCE_NOT_ALLOWED,
        BlockReason.CAPACITY_TYPE_NOT_ACCEPTED,
        BlockReason.PRICE_TOO_HIGH,
        BlockReason.EXCEEDS_QUOTA,
        BlockReason.NODES_UNAVAILABLE,
        BlockReason.PREDECESSOR_FAILED,
        BlockReason.PREDECESSOR_NOT_FOUND,
        BlockReason.CIRCULAR_DEPENDENCY,
        BlockReason.SCHEDULER_ERROR,
    }
)
"""Reasons of gangs that start only after a change of the job, its queue or the nodes."""


class LineKey(NamedTuple):
    """The key of a line."""

    root: str
    """The root queue. A queue that does not exist stands alone."""
    pool: str


class Lines:
    """The lines that gangs stand in.

    Args:
        snapshot: the cluster.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._queues = {queue.name: queue for queue in snapshot.queues}
        self._pools = {pool.name for pool in snapshot.pools}
        # Quota is shared along the whole tree, so the root decides which gangs compete.
        parents = parents_of(self._queues)
        self._roots: dict[str, str] = {}
        for name in self._queues:
            root = name
            while (parent := parents[root]) is not None:
                root = parent
            self._roots[name] = root

    def root(self, queue: str) -> str:
        """Return the root queue of a queue."""
        return self._roots.get(queue, queue)

    def of(self, gang: Gang) -> tuple[LineKey, ...]:
        """Return the lines of a gang: one for each pool that it may use."""
        queue = self._queues.get(gang.queue)
        nominal = frozenset(queue.nominal if queue is not None else ())
        pools = requested_pools(gang) or sorted(nominal)
        root = self.root(gang.queue)
        return tuple(
            LineKey(root, pool) for pool in pools if pool in self._pools and pool in nominal
        )

    def heads(self, order: Iterable[Gang], *, each: int, most: int) -> Sequence[Gang]:
        """Return the first gangs of every line, in the given order.

        Args:
            order: gangs in scheduling order.
            each: maximum number of gangs from one line.
            most: maximum number of gangs in all. The places go to the lines in turn.
        """
        before: Counter[LineKey] = Counter()
        ranked: list[tuple[int, int, Gang]] = []
        for number, gang in enumerate(order):
            lines = self.of(gang)
            # A gang in several lines counts with its best position.
            rank = min((before[line] for line in lines), default=each)
            if rank < each:
                ranked.append((rank, number, gang))
            before.update(lines)
        # Rank decides first, so that long lines do not take the places of short ones.
        chosen = sorted(ranked, key=lambda entry: entry[:2])[:most]
        return [gang for _, _, gang in sorted(chosen, key=lambda entry: entry[1])]
