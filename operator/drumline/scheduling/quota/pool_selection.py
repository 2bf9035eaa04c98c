"""Which pools a gang may be placed in, and in which order they are tried.

A gang that names pools is tried in these, in its order of preference; pools that do not exist or in
which its queue has no quota are skipped. A gang that names none is tried in all pools in which its
queue has quota, by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.model import Gang, Pool, Queue
from drumline.scheduling.quota.quota_ledger import QuotaLedger
from drumline.scheduling.quota.quota_rejections import no_quota
from drumline.scheduling.rejections import Rejection, correction, named


class PoolSelector:
    """Selects pools for gangs; equal gangs are answered once.

    Args:
        pools: that exist.
        quota: to compute which quota a rejected gang would need.
    """

    def __init__(self, *, pools: Iterable[Pool], quota: QuotaLedger) -> None:
        self._existing = {pool.name for pool in pools}
        self._quota = quota
        self._open: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        """By queue and the pools that a gang names."""

    def of(self, *, gang: Gang, queue: Queue) -> tuple[str, ...] | Rejection:
        """Names of the pools to try, in order, or the rejection if there are none."""
        names = requested_pools(gang)
        key = (queue.name, names)
        if key not in self._open:
            order = names or tuple(sorted(queue.nominal))
            usable = self._existing & queue.nominal.keys()
            self._open[key] = tuple(name for name in order if name in usable)
        return self._open[key] or self._rejection(gang=gang, queue=queue, names=names)

    def _rejection(self, *, gang: Gang, queue: Queue, names: tuple[str, ...]) -> Rejection:
        known = sorted(self._existing.intersection(names or queue.nominal))
        if names and not known:
            which = f"pool {names[0]} does" if len(names) == 1 else f"pools {named(names)} do"
            return Rejection(
                reason=BlockReason.POOL_NOT_FOUND,
                message=f"{which} not exist; pools: {named(sorted(self._existing)) or 'none'}",
                remedy=correction(wrong=names[0], right=self._existing.intersection(queue.nominal)),
            )
        first = next((name for name in names if name in self._existing), None)
        pool = first or min(self._existing, default=None)
        remedy = self._quota.raise_for(gang=gang, pool=pool) if pool is not None else None
        return no_quota(queue=queue, pool=first, gpus=gang.gpus, remedy=remedy)


def requested_pools(gang: Gang) -> tuple[str, ...]:
    """The pools that a gang names, in its order of preference; empty: any pool."""
    return gang.pools if gang.pool is None else (gang.pool,)
