"""Entitlement: whether a gang would borrow quota that a waiting gang is entitled to.

A gang is entitled to quota of another queue if the topmost branch of its side, below the common
cohort, stays within its own quota (`preemption_policy`). An elastic gang is entitled to its
smallest size. Among waiting gangs, the scheduling order prevents a borrower from starting before an
entitled gang of another queue (`queueing.order`). The order does not
cover two cases, which ask here:

* A nominated gang starts before the order is known. It may want a larger size than the one for
  which its preemption was permitted.
* A gang may start in a pool where it borrows more than in the pool that gave it its turn.

Example of the first case: a cohort of 4 GPUs, queue a with 2 of them and b with 1. An elastic gang
of a (2 or 4 pods) holds all 4. A gang of b (1 or 4 pods) reclaims 1, so all of a's gang is evicted.
Suppose that b's gang then started with 4 pods. The gang of a waits again and is entitled to 2. It
would reclaim these, start with 4 itself, and so on without end.
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
    """The entitlements of waiting gangs."""

    waiting: Sequence[Gang]
    """Gangs that their queues admit, including gangs that are being evicted."""
    quota: QuotaLedger
    pools: PoolSelector
    queues: Mapping[str, Queue]

    def first_deprived_by(self, gang: Gang, *, pool: str, size: int) -> Gang | None:
        """Return the first entitled gang from which a gang that holds nothing yet would borrow.

        Gangs of its own queue do not count, because nothing is reclaimed within a queue. O(waiting
        x depth)

        Args:
            gang: the gang that would start.
            pool: the pool of its start.
            size: its number of main pods.
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
            and self._is_entitled(other, pool=pool, path=cohorts.paths[leaf])
        )
        return next(deprived, None)

    def _is_entitled(self, gang: Gang, *, pool: str, path: Sequence[int]) -> bool:
        """Return whether the gang's smallest size needs GPUs of a pool that it may reclaim there.

        Args:
            gang: a waiting gang.
            pool: the pool.
            path: branches from the other queue up to the root that both queues have.
        """
        pools = self.pools.select(gang=gang, queue=self.queues[gang.queue])
        if isinstance(pools, Rejection) or pool not in pools:
            return False
        leaf, gpus = self.quota.tree.leaf_of[gang.queue], gang.gpus_at(gang.legal_sizes[0])
        cohorts = self.quota.cohorts(pool)
        above = cohorts.above_with(leaf=leaf, gpus=gpus)  # from the root down
        sides = zip(reversed(cohorts.paths[leaf]), above, strict=True)
        borrows = next(is_above for branch, is_above in sides if branch not in path)
        return gpus > 0 and not borrows


def _is_above(cohorts: CohortQuota, *, leaf: int, gpus: int) -> bool:
    """Return whether any branch would be above its quota with `gpus` more on a leaf."""
    return gpus > 0 and any(cohorts.above_with(leaf=leaf, gpus=gpus))
