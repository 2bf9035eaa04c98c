"""Select the pools that a gang may be placed in, in the order in which they are tried.

A gang that names pools is tried in these, in its order of preference. A pool is skipped in these
cases:

* It does not exist, or the gang's queue has no quota in it.
* Queue or gang do not accept its capacity type or price (`pool_prices`).
* It does not allow a device that the gang requests.
* It has partitions and counts parts of GPUs, and the gang does not name it alone.

A gang that names no pool is tried in all pools in which its queue has quota, the cheapest first,
then by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from drumline_api.resource_names import is_device, is_network_device
from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import Gang, Pool, Queue
from drumline_scheduler.quota.pool_prices import accepts, not_accepted, turn_of
from drumline_scheduler.quota.quota_ledger import QuotaLedger
from drumline_scheduler.quota.quota_rejections import no_quota
from drumline_scheduler.rejections import Rejection, correction, named


class PoolSelector:
    """Selects pools for gangs. Equal gangs share one answer.

    Args:
        pools: the existing pools.
        quota: computes the quota that a rejected gang would need.
    """

    def __init__(self, *, pools: Iterable[Pool], quota: QuotaLedger) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._quota = quota
        self._open: dict[tuple[object, ...], tuple[str, ...]] = {}
        """Names of usable pools, by queue and by everything of a gang that concerns pools."""
        self._not_allowed: dict[tuple[tuple[str, ...], tuple[str, ...], int], Rejection] = {}
        """Rejections because of devices, by pools, devices and GPUs of a gang."""
        self._selected: dict[int, tuple[Gang, Queue, tuple[str, ...]]] = {}
        """Usable pools by identity of a gang, which is asked about several times in a row."""
        self._devices: dict[int, tuple[Gang, tuple[str, ...]]] = {}
        """Devices by identity of a gang."""

    def select(self, *, gang: Gang, queue: Queue) -> tuple[str, ...] | Rejection:
        """Return the names of the pools to try, in order, or the rejection if there are none."""
        known = self._selected.get(id(gang))
        if known is not None and known[0] is gang and known[1] is queue:
            return known[2]
        names = requested_pools(gang)
        is_surplus = bool(gang.surplus_of)
        key = (
            *(queue.name, names, gang.pool, gang.partition, gang.price_rule, is_surplus),
            self._devices_of(gang),
        )
        if key not in self._open:
            usable = self._usable(gang, queue=queue)
            accepted = [
                pool
                for pool in usable
                if not uncharged_devices(self._devices_of(gang), pool=pool)
                and accepts(pool, gang=gang, queue=queue)
            ]
            if not names:
                accepted.sort(key=lambda pool: turn_of(pool, gang=gang, queue=queue))
            self._open[key] = tuple(pool.name for pool in accepted)
        pools = self._open[key]
        if not pools:
            return self._rejection(gang=gang, queue=queue, names=names)
        self._selected[id(gang)] = (gang, queue, pools)
        return pools

    def accepts(self, *, gang: Gang, queue: Queue, pool: str) -> bool:
        """Return whether queue and gang accept a pool, and the pool allows the gang's devices.

        Args:
            gang: the waiting gang.
            queue: the gang's queue.
            pool: name of the pool.
        """
        known = self._pools.get(pool)
        if known is None or uncharged_devices(self._devices_of(gang), pool=known):
            return False
        return accepts(known, gang=gang, queue=queue)

    def have_same_gpus(self, pool: str, other: str) -> bool:
        """Return whether two pools have and count GPUs of one kind, as far as is known."""
        known = [self._pools[name] for name in (pool, other) if name in self._pools]
        if len({each.parts_per_gpu for each in known}) > 1:
            return False
        resources, models = (
            {each.gpu_resource for each in known},
            {each.gpu_model for each in known},
        )
        return all(len(kinds - {""}) < 2 for kinds in (resources, models))

    def _devices_of(self, gang: Gang) -> tuple[str, ...]:
        known = self._devices.get(id(gang))
        if known is None or known[0] is not gang:
            known = self._devices[id(gang)] = (gang, devices_of(gang))
        return known[1]

    def _usable(self, gang: Gang, *, queue: Queue) -> list[Pool]:
        """Return the pools that a gang names, or all, in which its queue has quota."""
        order = requested_pools(gang) or sorted(queue.nominal)
        usable = self._pools.keys() & queue.nominal.keys()
        pools = [self._pools[name] for name in order if name in usable]
        return [pool for pool in pools if counts_like(gang, pool)]

    def _rejection(self, *, gang: Gang, queue: Queue, names: tuple[str, ...]) -> Rejection:
        # The most specific reason first: devices, type and price, missing pools, partitions, quota.
        usable = self._usable(gang, queue=queue)
        if usable:
            devices = self._devices_of(gang)
            key = (tuple(pool.name for pool in usable), devices, gang.gpus)
            if key in self._not_allowed:
                return self._not_allowed[key]
            charged = [pool for pool in usable if not uncharged_devices(devices, pool=pool)]
            if not charged:
                return self._not_allowed.setdefault(key, _not_allowed(gang, devices, pools=usable))
            return not_accepted(charged, gang=gang, queue=queue)
        known = sorted(self._pools.keys() & set(names or queue.nominal))
        if names and not known:
            which = f"pool {names[0]} does" if len(names) == 1 else f"pools {named(names)} do"
            return Rejection(
                reason=BlockReason.POOL_NOT_FOUND,
                message=f"{which} not exist; pools: {named(sorted(self._pools)) or 'none'}",
                remedy=correction(wrong=names[0], right=self._pools.keys() & queue.nominal.keys()),
            )
        unlike = [name for name in known if not counts_like(gang, self._pools[name])]
        if names and len(unlike) == len(known):
            return _unlike(gang, self._pools[unlike[0]])
        first = next((name for name in names if name in self._pools), None)
        pool = first or min(self._pools, default=None)
        remedy = self._quota.raise_for(gang=gang, pool=pool) if pool is not None else None
        gone = sorted({*names, *queue.nominal} - self._pools.keys())
        return no_quota(queue=queue, pool=first, gpus=gang.gpus, gone=gone, remedy=remedy)


def counts_like(gang: Gang, pool: Pool) -> bool:
    """Return whether a pool counts GPUs in the gang's unit, and has the kind that it requests."""
    if gang.partition:
        return gang.partition in pool.partitions
    return not pool.partitions or gang.pool == pool.name


def uncharged_devices(devices: Sequence[str], *, pool: Pool) -> tuple[str, ...]:
    """Return the devices that pods request and that a pool does not allow.

    The pool's own GPUs count in the quota. Another name of the same chips would not.
    """
    if not devices:
        return ()
    counted = {pool.gpu_resource, *pool.partitions} if pool.partitions else set[str]()
    return tuple(
        name
        for name in devices
        if name not in pool.auxiliary and name not in counted and not is_network_device(name)
    )


def devices_of(gang: Gang) -> tuple[str, ...]:
    """Return the names of the devices that any pod of a gang requests, sorted."""
    if not (gang.roles or gang.per_pod.extended):
        return ()
    pods = (gang.per_pod, *(role.per_pod for role in gang.roles))
    names = frozenset(name for pod in pods for name, _ in pod.extended)
    return _devices_among(names) if names else ()


@lru_cache(maxsize=256)
def _devices_among(names: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(filter(is_device, names)))


def _not_allowed(gang: Gang, devices: Sequence[str], *, pools: list[Pool]) -> Rejection:
    name, pool = min((uncharged_devices(devices, pool=each)[0], each.name) for each in pools)
    return Rejection(
        reason=BlockReason.RESOURCE_NOT_ALLOWED,
        message=f"resources: no quota counts {name}, and pool {pool} does not allow it: ask for"
        " GPUs by gpusPerNode, or add the name to auxiliaryResources of the GpuPool",
        needed=gang.gpus,
    )


def _unlike(gang: Gang, pool: Pool) -> Rejection:
    if not gang.partition:
        message = f"pool {pool.name} counts partitions of GPUs: name only this pool, as gpuPool"
    else:
        offered = named(pool.partitions) or "only whole GPUs"
        message = f"pool {pool.name} has no partition {gang.partition}; it has {offered}"
    return Rejection(
        reason=BlockReason.POOL_NOT_FOUND,
        message=message,
        remedy=correction(wrong=gang.partition, right=pool.partitions) if gang.partition else None,
    )


def requested_pools(gang: Gang) -> tuple[str, ...]:
    """Return the pools that a gang names, in its order of preference; empty: any pool."""
    return gang.pools if gang.pool is None else (gang.pool,)
