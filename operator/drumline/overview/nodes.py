"""Nodes by pool and topology, with the jobs that hold them or will get them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from drumline.overview.objects import ClusterObjects, JobObject, node_names
from drumline.overview.pool_units import PoolUnits
from drumline.overview.rows import NodeRow
from drumline_api.objects import builtin
from drumline_api.objects.custom import StoredGpuPool, StoredNodeHealthStatus, StoredPoolCapacity
from drumline_contract import plain

READY: Final = "Ready"
QUARANTINED: Final = "Quarantined"
_KEEPS_PODS_OFF: Final = frozenset(("NoSchedule", "NoExecute"))
_NO_OBSTACLES: Final = frozenset(
    ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "drumline.dev/promised")
)
"""Keys of taints: every job tolerates those of devices, and the last keeps off others than jobs."""
_ON_DEMAND: Final = StoredPoolCapacity()
_MOST_GPUS: Final = 2**20
_LONGEST_WHY: Final = 200


def node_rows(cluster: ClusterObjects) -> tuple[NodeRow, ...]:
    """Return a row for each node of a pool, by pool and by place in its topology.

    A node that several pools select belongs to the oldest of them, by age and then by name, as for
    the operator.
    """
    pools = sorted(cluster.pools, key=_age)
    units = PoolUnits(cluster.pools)
    held, jobs = _places(cluster.jobs, units)
    promised = _promises(cluster.jobs)
    health = {pool.metadata.name: _health(pool) for pool in pools}
    devices = _devices(cluster.slices)
    rows: list[NodeRow] = []
    for node in cluster.nodes:
        pool = next((each for each in pools if _selects(each, node)), None)
        if pool is None:
            continue
        name, levels = node.metadata.name, pool.spec.topology_levels or []
        labels, capacity = node.metadata.labels or {}, pool.spec.capacity or _ON_DEMAND
        state, why = _state(node, health=health[pool.metadata.name].get(name))
        worth = units.worth(pool.metadata.name)
        offered = {each: _count((node.status.allocatable or {}).get(each)) for each in worth}
        gpus = sum(parts * offered[each] for each, parts in worth.items())
        if pool.spec.devices is not None:
            gpus = devices[name][pool.spec.devices.driver]
        elif not gpus and any(map(_is_gpu, devices[name])):
            why = why or "its GPUs exist only as DRA devices"
        rows.append(
            NodeRow(
                node=plain(name),
                pool=plain(pool.metadata.name),
                domains=tuple(plain(labels.get(level.node_label, "")) for level in levels),
                gpus=gpus,
                held_gpus=held[name],
                state=state,
                why=plain(why)[:_LONGEST_WHY],
                jobs=tuple(sorted(jobs[name])) if name in jobs else (),
                promised_to=tuple(sorted(promised[name])) if name in promised else (),
                capacity=plain(capacity.type),
                price_per_gpu_hour=plain(capacity.price_per_gpu_hour or ""),
                parts_per_gpu=units.parts_per_gpu(pool.metadata.name),
                whole_gpus=offered[pool.spec.gpu_resource] if pool.spec.partitions else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.pool, row.domains, _natural(row.node))))


def _devices(slices: Iterable[builtin.ResourceSlice]) -> Mapping[str, Counter[str]]:
    """Return the number of devices by node and driver."""
    count: dict[str, Counter[str]] = defaultdict(Counter)
    for each in slices:
        if each.spec.node_name:
            count[each.spec.node_name][each.spec.driver] += len(each.spec.devices or ())
    return count


def _is_gpu(driver: str) -> bool:
    return driver.startswith(("gpu.", "gaudi."))


def _age(pool: StoredGpuPool) -> tuple[str, str]:
    return pool.metadata.creation_timestamp or "", pool.metadata.name


def _selects(pool: StoredGpuPool, node: builtin.Node) -> bool:
    labels = node.metadata.labels or {}
    return all(labels.get(key) == value for key, value in pool.spec.node_selector.items())


def _health(pool: StoredGpuPool) -> Mapping[str, StoredNodeHealthStatus]:
    return {entry.node: entry for entry in pool.status.node_health or ()}


def _places(
    jobs: Iterable[JobObject], units: PoolUnits
) -> tuple[Counter[str], Mapping[str, set[str]]]:
    """Return by node the GPUs that jobs hold, and the jobs."""
    held: Counter[str] = Counter()
    holders: dict[str, set[str]] = defaultdict(set)
    for job in jobs:
        places = job.held_places
        if places is None:
            continue
        lost = set(places.lost or ())
        for position, name in enumerate(node_names(places)):
            if position not in lost:
                held[name] += job.spec.gpus_of((position,)) * units.parts_of(job)
                holders[name].add(plain(job.key))
    return held, holders


def _promises(jobs: Iterable[JobObject]) -> Mapping[str, set[str]]:
    promised: dict[str, set[str]] = defaultdict(set)
    for job in jobs:
        if job.status.nominated is not None:
            for name in node_names(job.status.nominated):
                promised[name].add(plain(job.key))
    return promised


def _state(node: builtin.Node, *, health: StoredNodeHealthStatus | None) -> tuple[str, str]:
    """One word, and what the node itself says, or what speaks against it."""
    ready = [each for each in node.status.conditions or () if each.type == "Ready"]
    if not any(each.status == "True" for each in ready):
        return "NotReady", ready[0].message if ready else "no kubelet has reported"
    if node.spec.unschedulable:
        return "Cordoned", "kubectl uncordon opens it again"
    taints = [
        taint
        for taint in node.spec.taints or ()
        if taint.effect in _KEEPS_PODS_OFF and taint.key not in _NO_OBSTACLES
    ]
    if taints:
        return "Tainted", ", ".join(f"{each.key}:{each.effect}" for each in taints)
    if health is None:
        return READY, ""
    return QUARANTINED if health.quarantined_at else READY, health.message


def _count(text: str | None) -> int:
    """Return a number of devices, or 0 if the text is not a whole number."""
    return min(int(text), _MOST_GPUS) if text and text.isdecimal() and len(text) < 10 else 0


def _natural(name: str) -> tuple[str, int, str]:
    """`node-9` before `node-10`."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if digits and len(digits) < 19 else 0, name
