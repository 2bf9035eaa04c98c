"""Units of the GPUs of a job, a node or a quota in a pool that is divided into parts.

Figures of such a pool count parts (docs/accelerators.md). Sums over pools are in GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from drumline.overview.objects import JobObject
from drumline_api.objects import builtin
from drumline_api.objects.custom import StoredGpuPool

_WHOLE: Final = Fraction(1)


class PoolUnits:
    """The units of the pools that are known.

    Args:
        pools: pools with their partitions. In any other pool whole GPUs are counted.
    """

    def __init__(self, pools: Iterable[StoredGpuPool] = ()) -> None:
        self._pools = {pool.metadata.name: pool.spec for pool in pools}

    def parts_per_gpu(self, pool: str) -> int:
        """Return the number of parts of a pool's GPU. 1 means that the pool counts GPUs."""
        spec = self._pools.get(pool)
        if spec is None or spec.partitions is None:
            return 1
        return max(1, spec.partitions.parts_per_gpu)  # an older schema may have let 0 in

    def share_weight(self, pool: str) -> int:
        """Return the weight of one GPU of a pool in fair shares."""
        spec = self._pools.get(pool)
        return 1 if spec is None else max(1, spec.share_weight)

    def worth(self, pool: str) -> Mapping[str, int]:
        """Return the worth of one unit of each resource of a pool, in parts or GPUs."""
        spec = self._pools.get(pool)
        if spec is None:
            return {}
        if spec.partitions is None:
            return {spec.gpu_resource: 1}
        parts = {each.resource: each.parts for each in spec.partitions.resources}
        return {spec.gpu_resource: self.parts_per_gpu(pool), **parts}

    def in_gpus(self, amounts: Mapping[str, int]) -> float:
        """Return amounts of several pools in GPUs."""
        return float(
            sum(Fraction(amount, self.parts_per_gpu(pool)) for pool, amount in amounts.items())
        )

    def parts_of(self, job: JobObject) -> int:
        """Return the worth of one of a job's GPUs in its pool."""
        pool = _pool_of(job)
        return self.worth(pool).get(job.spec.gpu_partition or "", self.parts_per_gpu(pool))

    def share(self, job: JobObject) -> Fraction:
        """Return the fraction of a GPU that each of a job's GPUs is.

        The account of the job decides, otherwise its pool.
        """
        account = job.status.gpu_seconds
        if account is not None and account.parts and account.parts_per_gpu:
            return Fraction(account.parts, account.parts_per_gpu)
        parts = self.worth(_pool_of(job)).get(job.spec.gpu_partition or "")
        return _WHOLE if parts is None else Fraction(parts, self.parts_per_gpu(_pool_of(job)))


def _pool_of(job: JobObject) -> str:
    places = job.status.assignment
    return (job.spec.gpu_pool or "") if places is None else places.gpu_pool


def pools_by_node(
    nodes: Iterable[builtin.Node], pools: Iterable[StoredGpuPool]
) -> Mapping[str, str]:
    """Return the pool of each node that is in one, by the node's name."""
    pools = by_age(pools)
    pairs = ((node.metadata.name, pool_of(node, pools)) for node in nodes)
    return {name: pool.metadata.name for name, pool in pairs if pool is not None}


def by_age(pools: Iterable[StoredGpuPool]) -> Sequence[StoredGpuPool]:
    """Return pools as the operator prefers them for a node that several select: oldest first."""
    return sorted(pools, key=_age)


def pool_of(node: builtin.Node, pools: Iterable[StoredGpuPool]) -> StoredGpuPool | None:
    """Return the first of these pools that selects a node."""
    labels = node.metadata.labels or {}
    return next(
        (
            pool
            for pool in pools
            if all(labels.get(key) == value for key, value in pool.spec.node_selector.items())
        ),
        None,
    )


def _age(pool: StoredGpuPool) -> tuple[str, str]:
    return pool.metadata.creation_timestamp or "", pool.metadata.name
