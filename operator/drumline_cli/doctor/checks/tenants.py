"""Queues, and the namespaces whose jobs they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from drumline_api.podprofile import PodProfile
from drumline_cli.doctor.checks.hardware import members_of
from drumline_cli.doctor.facts import (
    JobFact,
    NamespaceFact,
    NodeFact,
    OperatorFact,
    PoolFact,
    QueueFact,
)
from drumline_cli.doctor.results import CheckFailed, Passed, Result, Warned, some
from drumline_cli.formatting import many

ENFORCED: Final = "pod-security.kubernetes.io/enforce"
# Ordered from strict to permissive. Each level allows everything of the level before it.
_LEVELS: Final = ("restricted", "baseline", "privileged")
_BASELINE_CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
"""https://kubernetes.io/docs/concepts/security/pod-security-standards/, of the level baseline."""


def queues(
    queues: tuple[QueueFact, ...],
    pools: tuple[PoolFact, ...],
    nodes: tuple[NodeFact, ...],
    jobs: tuple[JobFact, ...] = (),
) -> Iterator[Result]:
    """Check whether jobs have a queue and a pool, and which jobs each queue accepts.

    Args:
        queues: TrainingQueues of the cluster.
        pools: GpuPools of the cluster.
        nodes: nodes of the cluster.
        jobs: TrainingJobs that are not over.
    """
    # Phase 1: jobs without a queue or a pool. They also hide the success message.
    orphans = list(_orphans(queues, pools, jobs))
    yield from orphans
    if not queues:
        yield Warned(
            message="there is no TrainingQueue, so no job can start",
            fix="kubectl apply -f examples/queue.yaml, with your pools, GPUs and namespaces",
        )
        return
    # Phase 2: GPUs of each pool, for the comparison with quotas.
    sizes = {
        pool.name: sum(
            node.allocatable.get(pool.spec.gpu_resource, 0) for node in members_of(pool, nodes)
        )
        for pool in pools
    }
    # Phase 3: contradictions within the queues themselves.
    sound = not orphans
    for cycle in _cycles(queues):
        sound = False
        yield CheckFailed(
            message=f"the parents of queues form a cycle, {' -> '.join(cycle)}: these queues"
            " neither borrow nor lend",
            fix="change spec.parent of one of them",
        )
    for problem in _unmet_promises(queues, sizes):
        sound = False
        yield problem
    # An open queue is allowed. The warning tells administrators that it is not restricted.
    if openly := [queue.name for queue in queues if queue.spec.is_open_to_all]:
        yield Warned(
            message=f"jobs of every namespace may use {some(openly)}",
            fix="list the namespaces of each queue in spec.namespaces, or select them by label"
            " with spec.namespaceSelector",
        )
    elif sound:
        yield Passed(message=f"{many(len(queues), 'queue')} with restricted pools and namespaces")


def _unmet_promises(
    queues: tuple[QueueFact, ...], sizes: Mapping[str, int]
) -> Iterator[CheckFailed | Warned]:
    """Report pools, parents and GPUs that queues name and that do not exist.

    Args:
        queues: all queues.
        sizes: GPUs by pool.
    """
    names = {queue.name for queue in queues}
    for queue in queues:
        quotas = {quota.gpu_pool: quota.nominal_gpus for quota in queue.spec.quotas}
        # A quota for a missing pool is a typing mistake, or the pool was deleted.
        if missing := quotas.keys() - sizes.keys():
            yield CheckFailed(
                message=f"{queue.name}: GpuPool {some(missing)} does not exist, so the quota for"
                " it is not used",
                fix="create the pool, or remove the quota",
            )
        if queue.spec.parent is not None and queue.spec.parent not in names:
            yield CheckFailed(
                message=f"{queue.name}: parent {queue.spec.parent} does not exist, so the queue"
                " neither borrows nor lends",
                fix="create this TrainingQueue, or remove parent",
            )
        for pool in sorted(quotas.keys() & sizes.keys()):
            # Another check reports pools without nodes, so zero is fine here.
            if quotas[pool] > sizes[pool] > 0:
                yield Warned(
                    message=f"{queue.name}: quotas promise {quotas[pool]} GPUs of {pool}, which"
                    f" has {sizes[pool]}",
                    fix="lower nominalGpus, or add nodes",
                )


def _orphans(
    queues: tuple[QueueFact, ...], pools: tuple[PoolFact, ...], jobs: tuple[JobFact, ...]
) -> Iterator[Result]:
    """Report jobs whose queue or pool was deleted."""
    names, known_pools = {queue.name for queue in queues}, {pool.name for pool in pools}
    # Running and waiting jobs of a missing queue need different sentences.
    by_queue, by_pool = Counter[tuple[str, bool]](), Counter[str]()
    for job in jobs:
        if job.queue and job.queue not in names:
            by_queue[job.queue, bool(job.pool)] += 1
        if job.pool and job.pool not in known_pools:
            by_pool[job.pool] += 1
    for queue in sorted({queue for queue, _ in by_queue}):
        running, waiting = by_queue[queue, True], by_queue[queue, False]
        yield CheckFailed(
            message=f"TrainingQueue {queue} does not exist, but jobs name it:"
            f" {running} running outside of any quota, {waiting} waiting",
            fix=f"create TrainingQueue {queue} again, or delete these jobs",
        )
    for pool, running in sorted(by_pool.items()):
        yield CheckFailed(
            message=f"GpuPool {pool} does not exist, but {many(running, 'job')} hold GPUs there",
            fix=f"create GpuPool {pool} again",
        )


def _cycles(queues: tuple[QueueFact, ...]) -> Iterator[list[str]]:
    """Yield each cycle of parents once, as `a, b, a`."""
    parents = {queue.name: queue.spec.parent for queue in queues}
    seen: set[str] = set()
    for name in sorted(parents):
        path: list[str] = []
        # Each queue has one parent, so a walk from every queue finds each cycle.
        at: str | None = name
        while at is not None and at not in seen:
            seen.add(at)
            path.append(at)
            at = parents.get(at)
        # The walk may also end in a queue of an earlier walk. That is not a new cycle.
        if at in path:
            yield [*path[path.index(at) :], at]


def guarded_pools(
    operator: OperatorFact | None, pools: tuple[PoolFact, ...], queues: tuple[QueueFact, ...]
) -> Iterator[Result]:
    """Check whether guarded pools exist, and whether pods can give back borrowed GPUs.

    Args:
        operator: settings of the operator.
        pools: GpuPools of the cluster.
        queues: TrainingQueues of the cluster.
    """
    guarded = frozenset[str]() if operator is None else operator.guarded_pools
    names = {pool.name for pool in pools}
    sound = True
    # Only an existing pool has nodes that can be guarded.
    if absent := guarded - names:
        sound = False
        yield Warned(
            message=f"guardedPools names {some(absent)}, but no such GpuPool exists, so no node"
            " is guarded",
            fix="correct the chart's guardedPools, or create the pool",
        )
    evicting = [queue for queue in queues if queue.spec.foreign_pods.borrowed == "Evict"]
    if evicting and operator is not None and not operator.evicts_foreign_pods:
        sound = False
        yield Warned(
            message=f"{some({queue.name for queue in evicting})}: foreignPods.borrowed is Evict,"
            " but the operator may not evict pods, so they stay",
            fix="set the chart's foreignPods.evict, or use borrowed: Keep",
        )
    # Without the operator's settings nothing is known about guarded pools.
    for queue in evicting if operator is not None else ():
        quotas = {quota.gpu_pool for quota in queue.spec.quotas} & names
        if open_pools := quotas - guarded:
            sound = False
            yield Warned(
                message=f"{queue.name}: foreignPods.borrowed is Evict, which applies only in"
                f" guarded pools: its pods stay in {some(open_pools)}",
                fix="add the pools to the chart's guardedPools, or use borrowed: Keep",
            )
    if sound:
        yield Passed(
            message=f"{many(len(guarded), 'guarded pool')}, which covers all pools that need it"
        )


def pod_security(
    namespaces: tuple[NamespaceFact, ...],
    queues: tuple[QueueFact, ...],
    pools: tuple[PoolFact, ...],
    jobs: tuple[JobFact, ...],
) -> Iterator[Result]:
    """Check whether namespaces admit the pods of their jobs.

    Args:
        namespaces: namespaces with their labels.
        queues: TrainingQueues of the cluster.
        pools: GpuPools of the cluster.
        jobs: TrainingJobs that are not over.
    """
    # Phase 1: index the namespaces, and the level that each pool needs.
    labels = {namespace.name: namespace.labels for namespace in namespaces}
    with_jobs = {job.namespace for job in jobs}
    needs = {pool.name: level_of(pool.spec.pod_profile) for pool in pools}
    refused: dict[tuple[str, str, str], set[str]] = {}
    absent: set[str] = set()
    seen: set[str] = set()
    # Phase 2: check every namespace of a queue against every pool of the queue.
    for queue in queues:
        named = _namespaces_of(queue, labels=labels, with_jobs=with_jobs)
        absent |= named - labels.keys()
        for namespace in sorted(named & labels.keys()):
            seen.add(namespace)
            # Without the label, the API server enforces nothing by default.
            enforced = labels[namespace].get(ENFORCED, "privileged")
            for quota in queue.spec.quotas:
                needed = needs.get(quota.gpu_pool, "restricted")
                if not _admits(enforced, needed):
                    pair = (namespace, enforced, needed)
                    refused.setdefault(pair, set()).add(quota.gpu_pool)
    # One finding per pair of levels, with all of its pools.
    for (namespace, enforced, needed), names in refused.items():
        yield CheckFailed(
            message=f"namespace {namespace} enforces {enforced}, but the podProfile of"
            f" {some(names)} needs {needed}: the API server rejects such pods",
            fix=f"kubectl label namespace {namespace} {ENFORCED}={needed} --overwrite, and let"
            " only the operator create pods there",
        )
    if absent:
        yield Warned(
            message=f"queues name namespaces that do not exist: {some(absent)}",
            fix="create them, or correct spec.namespaces of the queues",
        )
    if not refused and not absent:
        yield Passed(message=f"{many(len(seen), 'namespace')} of queues admit the pods of jobs")


def _namespaces_of(
    queue: QueueFact, *, labels: Mapping[str, Mapping[str, str]], with_jobs: set[str]
) -> set[str]:
    """Return the namespaces of a queue. For a queue that is open to all: those with jobs."""
    # All namespaces would be too many, so an open queue counts those with jobs.
    if queue.spec.is_open_to_all:
        return with_jobs
    selector = queue.spec.namespace_selector
    selected = {
        name for name, each in labels.items() if selector is not None and selector.selects(each)
    }
    return selected.union(queue.spec.namespaces or ())


def level_of(profile: PodProfile | None) -> str:
    """Return the strictest Pod Security level that admits pods with this profile."""
    if profile is None:
        return "restricted"
    sidecars = profile.sidecars or ()
    added = {name for source in (profile, *sidecars) for name in source.capabilities or ()}
    # hostPath and privileged containers are allowed only at the level privileged.
    if (
        any(volume.host_path is not None for volume in profile.volumes or ())
        or any(sidecar.privileged for sidecar in sidecars)
        or added - _BASELINE_CAPABILITIES
    ):
        return "privileged"
    as_root = 0 in (profile.run_as_user, *(sidecar.run_as_user for sidecar in sidecars))
    # The restricted level forbids root and all capabilities but NET_BIND_SERVICE.
    if as_root or added - {"NET_BIND_SERVICE"}:
        return "baseline"
    return "restricted"


def _admits(enforced: str, needed: str) -> bool:
    """Unknown levels are those of a newer Kubernetes: not judged."""
    order: Mapping[str, int] = {level: index for index, level in enumerate(_LEVELS)}
    # The default exceeds every known level, so an unknown level admits everything.
    return order.get(enforced, len(_LEVELS)) >= order[needed]
