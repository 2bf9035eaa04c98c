"""Which pools a gang may be placed in, and in which order they are tried.

The pools it names, first the ones it would rather have, or else all those its queue has quota in,
by name. Of several names those that do not exist, and those in which the queue has no quota, are
passed over.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.model import Gang, Pool, Queue
from drumline.scheduling.quota.quota_ledger import QuotaLedger
from drumline.scheduling.quota.quota_rejections import no_quota
from drumline.scheduling.rejections import Rejection, correction, named


class PoolSelector:
    """The pools of a snapshot; answers are remembered.

    Args:
        pools: those that exist.
        quota: knows what quota a rejected gang would need.
    """

    def __init__(self, *, pools: Iterable[Pool], quota: QuotaLedger) -> None:
        self._existing = {pool.name for pool in pools}
        self._quota = quota
        self._open: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        """By queue and the pools that a gang names."""

    def of(self, *, gang: Gang, queue: Queue) -> tuple[str, ...] | Rejection:
        """Names of the pools to try, in order, or why there is none."""
        wished = requested_pools(gang)
        key = (queue.name, wished)
        if key not in self._open:
            order = wished or tuple(sorted(queue.nominal))
            usable = self._existing & queue.nominal.keys()
            self._open[key] = tuple(name for name in order if name in usable)
        return self._open[key] or self._rejection(gang=gang, queue=queue, wished=wished)

    def _rejection(self, *, gang: Gang, queue: Queue, wished: tuple[str, ...]) -> Rejection:
        known = sorted(self._existing.intersection(wished or queue.nominal))
        if wished and not known:
            which = f"pool {wished[0]} does" if len(wished) == 1 else f"pools {named(wished)} do"
            return Rejection(
                reason=BlockReason.POOL_NOT_FOUND,
                message=f"{which} not exist; pools: {named(sorted(self._existing)) or 'none'}",
                remedy=correction(
                    wrong=wished[0], right=self._existing.intersection(queue.nominal)
                ),
            )
        first = next((name for name in wished if name in self._existing), None)
        pool = first or min(self._existing, default=None)
        remedy = self._quota.raise_for(gang=gang, pool=pool) if pool is not None else None
        return no_quota(queue=queue, pool=first, gpus=gang.gpus, remedy=remedy)


def requested_pools(gang: Gang) -> tuple[str, ...]:
    """The pools that a gang names, in the order of trying; none: it takes any."""
    return gang.pools if gang.pool is None else (gang.pool,)
