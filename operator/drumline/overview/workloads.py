"""Holders of GPUs beside TrainingJobs: pods that name a queue, summed by their creator.

The operator charges each pod by itself (docs/sharing.md). Here the pods of one Deployment or Job
are one workload. Only pods that still exist are known. The use of deleted pods is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from drumline.overview.objects import ClusterObjects, seconds
from drumline.overview.pool_units import pools_by_node
from drumline.overview.rows import StayRow
from drumline.overview.workload_objects import JOB, QUEUE, PodObject, workload_of
from drumline_api.objects.custom import StoredGpuPool, StoredGpuPoolSpec, StoredTrainingQueue
from drumline_contract import plain

FOREIGN_USER: Final = "foreign pods"
"""User of foreign pods in sums by user. A job's user name has no spaces."""
FOREIGN_PHASE: Final = "Foreign"
_GPU_RESOURCE: Final = StoredGpuPoolSpec().gpu_resource


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadUse:
    """Pods of one workload, and when they held how many GPUs.

    Attributes:
        workload: `namespace/deployments/name`; of a pod by itself `namespace/pods/name`.
        namespace: its namespace.
        queue: queue that pays.
        stays: a record for each of its existing pods, including ended ones.
        gpus: GPUs that it holds now; a part counts as a fraction of a GPU.
        pods: number of pods that hold these GPUs.
        since: when the first of these pods began.
        by_pool: the same GPUs by pool; an empty name for nodes that are not known.
    """

    workload: str
    namespace: str
    queue: str
    stays: tuple[StayRow, ...]
    gpus: float = 0
    pods: int = 0
    since: float | None = None
    by_pool: Mapping[str, float] = field(default_factory=dict[str, float])


def workload_uses(cluster: ClusterObjects) -> tuple[WorkloadUse, ...]:
    """Return the use by the creator of the pods, the largest first."""
    worth = worth_of_resources(cluster.pools)
    pools = pools_by_node(cluster.nodes, cluster.pools)
    held: dict[tuple[str, str], list[tuple[StayRow, bool]]] = {}
    by_pool: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    namespaces: dict[str, str] = {}
    for pod in cluster.pods:
        stay = _stay(pod, worth=worth, now=cluster.as_of)
        if stay is None or pod.metadata.label(JOB):
            continue
        name = workload_of(pod)
        namespaces[name] = pod.metadata.namespace
        queue = payer(cluster.queues, pod.metadata.namespace, named=pod.metadata.label(QUEUE))
        if not queue:
            continue
        held.setdefault((name, queue), []).append((stay, not pod.has_ended))
        if not pod.has_ended:
            pool = pools.get(pod.spec.node_name, "")
            gpus = by_pool[name, queue].get(pool, 0)
            by_pool[name, queue][pool] = gpus + stay.gpus
    uses = [
        replace(
            _use(name, stays, namespace=namespaces[name], queue=queue),
            by_pool=by_pool[name, queue],
        )
        for (name, queue), stays in held.items()
    ]
    return tuple(sorted(uses, key=lambda use: (-use.gpus, use.workload)))


def worth_of_resources(pools: Iterable[StoredGpuPool]) -> dict[str, Fraction]:
    """Return the fraction of a GPU that one unit of each resource is."""
    worth = {_GPU_RESOURCE: Fraction(1)}
    for pool in pools:
        parts = pool.spec.partitions
        worth[pool.spec.gpu_resource] = Fraction(1)
        if parts is not None:
            for each in parts.resources:
                worth[each.resource] = Fraction(each.parts, max(1, parts.parts_per_gpu))
    return worth


def gpus_of(pod: PodObject, worth: Mapping[str, Fraction]) -> float:
    """Return the GPUs that a pod requests."""
    gpus = sum(pod.devices(name) * value for name, value in worth.items())
    return int(gpus) if gpus == int(gpus) else float(gpus)


def payer(queues: Iterable[StoredTrainingQueue], namespace: str, *, named: str) -> str:
    """Return the queue that pays for a pod, or '' if none does.

    Args:
        queues: all queues. Without any, the label counts.
        namespace: namespace of the pod.
        named: queue in the pod's label, or ''.
    """
    known = {queue.metadata.name: queue for queue in queues}
    if not known or (named in known and _may_be_open(known[named], namespace)):
        return named
    last = sorted(
        (queue.metadata.creation_timestamp or "", name)
        for name, queue in known.items()
        if queue.spec.pays_for_unclaimed_pods
    )
    return last[0][1] if last else ""


def _may_be_open(queue: StoredTrainingQueue, namespace: str) -> bool:
    """Return False if the queue is closed to a namespace.

    A selector may mean any namespace, because labels are not read here.
    """
    if queue.spec.namespace_selector is not None:
        return True
    return queue.spec.namespaces is None or namespace in queue.spec.namespaces


def _stay(pod: PodObject, *, worth: Mapping[str, Fraction], now: float) -> StayRow | None:
    """Return the period in which a pod held its GPUs. None: no GPUs, or no kubelet started it."""
    begins, gpus = seconds(pod.status.start_time), gpus_of(pod, worth)
    if begins is None or not gpus or not pod.is_accepted:
        return None
    ends = now
    if pod.has_ended:
        states = [each.state.terminated for each in pod.status.container_statuses or ()]
        ended = [seconds(state.finished_at) for state in states if state is not None]
        ends = max((at for at in ended if at is not None), default=begins)
    return StayRow(begins_at=begins, ends_at=max(begins, ends), gpus=gpus)


def _use(
    name: str, stays: Iterable[tuple[StayRow, bool]], *, namespace: str, queue: str
) -> WorkloadUse:
    """Return the use of a workload from its pods' stays, each with True if it continues."""
    stays = list(stays)
    now = [stay for stay, continues in stays if continues]
    return WorkloadUse(
        workload=plain(name),
        namespace=plain(namespace),
        queue=plain(queue),
        stays=tuple(stay for stay, _ in stays),
        gpus=sum(stay.gpus for stay in now),
        pods=len(now),
        since=min((stay.begins_at for stay in now), default=None),
    )
