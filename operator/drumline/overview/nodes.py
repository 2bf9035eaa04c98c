"""Nodes by pool and topology, with the jobs that hold them or will get them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from drumline.overview.objects import ClusterObjects, JobObject, node_names
from drumline.overview.pool_units import PoolUnits, by_age, pool_of
from drumline.overview.rows import NodeRow
from drumline.overview.workload_objects import JOB, PodObject, workload_of
from drumline_api.objects import builtin
from drumline_api.objects.custom import StoredGpuPool, StoredNodeHealthStatus, StoredPoolCapacity
from drumline_contract import plain

READY: Final = "Ready"
QUARANTINED: Final = "Quarantined"
# PreferNoSchedule is a preference, so it closes no node.
_KEEPS_PODS_OFF: Final = frozenset(("NoSchedule", "NoExecute"))
_NO_OBSTACLES: Final = frozenset(
    ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "drumline.dev/promised")
)
"""Keys of taints: every job tolerates those of devices, and the last keeps off others than jobs."""
_ON_DEMAND: Final = StoredPoolCapacity()
# The bounds below keep a foreign number or text from filling a terminal.
_MOST_GPUS: Final = 2**20
_LONGEST_WHY: Final = 200
_LONGEST_NAME: Final = 300
_NUMBERS: Final = re.compile(r"([0-9]+)")
_Part = tuple[bool, int, str]
"""A part of a name: whether it is a number, the number, the text."""


def node_rows(cluster: ClusterObjects) -> tuple[NodeRow, ...]:
    """Return a row for each node of a pool, by pool and by place in its topology.

    A node that several pools select belongs to the oldest of them, by age and then by name, as for
    the operator.
    """
    pools = by_age(cluster.pools)
    units = PoolUnits(cluster.pools)
    held, jobs = _places(cluster.jobs, units)
    # Foreign pods are summed per node, because their pool depends on the node.
    foreign = _foreign_pods(cluster.pods)
    promised = _promises(cluster.jobs)
    health = {pool.metadata.name: _health(pool) for pool in pools}
    devices = _devices(cluster.slices)
    rows: list[NodeRow] = []
    for node in cluster.nodes:
        # Nodes of no pool are of no interest to jobs.
        pool = pool_of(node, pools)
        if pool is None:
            continue
        name, levels = node.metadata.name, pool.spec.topology_levels or []
        labels, capacity = node.metadata.labels or {}, pool.spec.capacity or _ON_DEMAND
        state, why = _state(node, health=health[pool.metadata.name].get(name))
        worth = units.worth(pool.metadata.name)
        # A divided GPU is offered under several resource names, each worth some parts.
        offered = {each: _count((node.status.allocatable or {}).get(each)) for each in worth}
        gpus = sum(parts * offered[each] for each, parts in worth.items())
        # DRA devices are not in `allocatable`. The node's slices list them.
        if pool.spec.devices is not None:
            gpus = devices[name][pool.spec.devices.driver]
        elif not gpus and any(map(_is_gpu, devices[name])):
            # Without this hint, a node with DRA devices only would look empty.
            why = why or "its GPUs exist only as DRA devices"
        taken = _sums(foreign.get(name, ()), worth)
        rows.append(
            NodeRow(
                node=plain(name),
                pool=plain(pool.metadata.name),
                domains=tuple(plain(labels.get(level.node_label, "")) for level in levels),
                gpus=gpus,
                held_gpus=held[name] + sum(taken.values()),
                foreign_gpus=sum(taken.values()),
                state=state,
                # Cut after `plain`, which may lengthen a text by its escapes.
                why=plain(why)[:_LONGEST_WHY],
                jobs=tuple(sorted(jobs[name])) if name in jobs else (),
                workloads=tuple(sorted(plain(each) for each, gpus in taken.items() if gpus)),
                promised_to=tuple(sorted(promised[name])) if name in promised else (),
                capacity=plain(capacity.type),
                price_per_gpu_hour=plain(capacity.price_per_gpu_hour or ""),
                parts_per_gpu=units.parts_per_gpu(pool.metadata.name),
                whole_gpus=offered[pool.spec.gpu_resource] if pool.spec.partitions else None,
            )
        )
    return tuple(sorted(rows, key=_place))


def _foreign_pods(pods: Iterable[PodObject]) -> Mapping[str, Sequence[PodObject]]:
    """Return the pods of other workloads by node: those that are bound and have not ended."""
    bound: dict[str, list[PodObject]] = defaultdict(list)
    for pod in pods:
        # Jobs' pods are counted by their places, which exist before the pods do.
        if pod.spec.node_name and not (pod.has_ended or pod.metadata.label(JOB)):
            bound[pod.spec.node_name].append(pod)
    return bound


def _sums(pods: Iterable[PodObject], worth: Mapping[str, int]) -> Counter[str]:
    """Return what pods hold of a node, by workload, in the unit of its pool."""
    held: Counter[str] = Counter()
    for pod in pods:
        held[workload_of(pod)] += sum(parts * pod.devices(each) for each, parts in worth.items())
    return held


def _devices(slices: Iterable[builtin.ResourceSlice]) -> Mapping[str, Counter[str]]:
    """Return the number of devices by node and driver."""
    count: dict[str, Counter[str]] = defaultdict(Counter)
    for each in slices:
        # A slice for several nodes has no node name, and its devices are not local.
        if each.spec.node_name:
            count[each.spec.node_name][each.spec.driver] += len(each.spec.devices or ())
    return count


def _is_gpu(driver: str) -> bool:
    return driver.startswith(("gpu.", "gaudi."))


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
            # A lost position holds nothing: its pod is gone.
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
    """Return the state of a node as one word, and the reason."""
    ready = [each for each in node.status.conditions or () if each.type == "Ready"]
    # A node without the condition has no kubelet, so it counts as not ready.
    if not any(each.status == "True" for each in ready):
        return "NotReady", ready[0].message if ready else "no kubelet has reported"
    # kube-controller-manager adds a taint for cordoned nodes, so this case comes first.
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


def _count(amount: str | float | None) -> int:
    """Return a number of devices, or 0 if the amount is not a whole number."""
    text = "" if amount is None else str(amount)
    # Fewer than ten digits: larger numbers are not counts of devices.
    return min(int(text), _MOST_GPUS) if text.isdecimal() and len(text) < 10 else 0


def _place(row: NodeRow) -> tuple[list[_Part], list[list[_Part]], list[_Part]]:
    """Return the order of rows: `rack-2` before `rack-10`."""
    return natural(row.pool), [natural(domain) for domain in row.domains], natural(row.node)


def natural(name: str) -> list[_Part]:
    """Return the key of a name whose numbers are ordered by value: `node-9` before `node-10`."""
    return [
        # The first element orders texts before numbers.
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in _NUMBERS.split(name[:_LONGEST_NAME])
    ]
