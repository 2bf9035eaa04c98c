"""Entitlement: whether a gang would borrow quota that a waiting gang is entitled to.

A gang is entitled to what keeps its queue and every cohort above within their quotas; an elastic
gang to its smallest size. Among waiting gangs the order lets no borrower start before a gang of
another queue that is entitled to the same quota (`ordering`). Two ask here, because the order does
not: a nominated gang, which starts before the order is asked, for a larger size than its preemption
was permitted for; and a gang in a pool where it would borrow more than in the one that gave it its
turn.

Example of the first: a cohort of 4 GPUs, queue a with 2 of them and b with 1. An elastic gang of a
(2 or 4 pods) holds all 4, and one of b (1 or 4 pods) reclaims 1, so all of a's gang is evicted. If
b's gang then started with 4 pods, a's gang, which waits again and is entitled to 2, would reclaim
these, start with 4 itself, and so on without end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drumline_scheduler.model import Gang, Queue
from drumline_scheduler.quota.cohorts import CohortQuota
from drumline_scheduler.quota.pool_selection import PoolSelector
from drumline_scheduler.quota.quota_ledger import QuotaLedger
from drumline_scheduler.rejections import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlements:
    """What the waiting gangs are entitled to."""

    waiting: Sequence[Gang]
    """Gangs that their queues admit; also gangs that are being evicted."""
    quota: QuotaLedger
    pools: PoolSelector
    queues: Mapping[str, Queue]

    def first_deprived_by(self, gang: Gang, *, pool: str, size: int) -> Gang | None:
        """The first of them from which a gang that holds nothing yet would borrow.

        Gangs of its own queue do not count: nothing is reclaimed within a queue. O(waiting x depth)
        """
        cohorts, leaf_of = self.quota.cohorts(pool), self.quota.tree.leaf_of
        leaf, root = leaf_of[gang.queue], cohorts.paths[leaf_of[gang.queue]][-1]
        if not _is_above(cohorts, leaf=leaf, gpus=gang.gpus_at(size)):
            return None
        deprived = (
            other
            for other in self.waiting
            if leaf_of[other.queue] != leaf
            and cohorts.paths[leaf_of[other.queue]][-1] == root
            and self._is_entitled(other, pool=pool)
        )
        return next(deprived, None)

    def _is_entitled(self, gang: Gang, *, pool: str) -> bool:
        """Whether its smallest size needs GPUs of a pool, all within quota."""
        pools = self.pools.of(gang=gang, queue=self.queues[gang.queue])
        if isinstance(pools, Rejection) or pool not in pools:
            return False
        leaf, gpus = self.quota.tree.leaf_of[gang.queue], gang.gpus_at(gang.legal_sizes[0])
        return gpus > 0 and not _is_above(self.quota.cohorts(pool), leaf=leaf, gpus=gpus)


def _is_above(cohorts: CohortQuota, *, leaf: int, gpus: int) -> bool:
    """Whether any branch would be above its quota with so many more GPUs of a leaf."""
    return gpus > 0 and any(cohorts.above_with(leaf=leaf, gpus=gpus))
