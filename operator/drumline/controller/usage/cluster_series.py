"""Values of single jobs and nodes for the metrics of `telemetry.cluster_series`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.lifecycle.plan.deadlines import start_deadline
from drumline.telemetry.cluster_series import (
    ClusterSeries,
    DisruptionSeries,
    JobSeries,
    NodeSeries,
    PartialGang,
)
from drumline_scheduler.disruption.model import Disruption
from drumline_scheduler.model import Node, Snapshot

GRACE_SECONDS: Final = 60.0
"""Extra time: the operator acts on an expired start only when it next reconciles the job."""


def cluster_series(
    jobs: Collection[Job],
    *,
    snapshot: Snapshot,
    disruptions: Iterable[Disruption],
    pods_of: Callable[[str, str], Collection[PodFacts]],
    most_jobs: int,
    now: float,
) -> ClusterSeries:
    """Return the series as of now. O(jobs + nodes).

    Args:
        jobs: all jobs of the cluster.
        snapshot: the nodes, and the GPUs that jobs hold.
        disruptions: announced disruptions, one for each node.
        pods_of: returns the pods of a job by namespace and uid.
        most_jobs: number of jobs with their own series. Jobs that hold GPUs come first. 0: the
            readers are not restricted, so no job is named.
        now: seconds since the epoch.
    """
    chosen, left_out = _job_series(jobs, snapshot=snapshot, most=most_jobs)
    gangs = (partial_gang(job, pods_of(job.namespace, job.uid), now=now) for job in jobs)
    partial = [gang for gang in gangs if gang is not None]
    return ClusterSeries(
        jobs=chosen,
        jobs_left_out=left_out,
        nodes=tuple(_node_series(node) for node in snapshot.nodes),
        disruptions=tuple(
            DisruptionSeries(
                node=each.node, kind=str(each.kind), confidence=each.confidence.name.lower()
            )
            for each in disruptions
        ),
        partial=tuple(partial if most_jobs else _by_queue(partial)),
    )


def _by_queue(gangs: Iterable[PartialGang]) -> Iterator[PartialGang]:
    """Yield the missing members of each queue, without the names of its jobs."""
    missing = Counter[str]()
    for gang in gangs:
        missing[gang.queue] += gang.missing
    for queue, members in missing.items():
        yield PartialGang(namespace="", name="", queue=queue, missing=members)


def partial_gang(job: Job, pods: Collection[PodFacts], *, now: float) -> PartialGang | None:
    """Return the gang if only some members are bound and its start deadline has passed.

    A pod is created with its node, so a member is bound when its pod exists. Members that an
    elastic gang is about to gain do not count.

    Args:
        job: the job with its present status.
        pods: the job's pods.
        now: Unix time in seconds.
    """
    places = job.status.assignment
    if job.finished or places is None or now < start_deadline(job) + GRACE_SECONDS:
        return None
    expected = set(places.indices()) - set(places.joining or ())
    missing = len(expected - {pod.index for pod in pods})
    # No pod at all is a start that did not begin, which is not a partial gang.
    if not 0 < missing < len(expected):
        return None
    return PartialGang(
        namespace=job.namespace, name=job.name, queue=job.spec.queue, missing=missing
    )


def _job_series(
    jobs: Collection[Job], *, snapshot: Snapshot, most: int
) -> tuple[tuple[JobSeries, ...], int]:
    """Return the series of at most `most` jobs, and the number of jobs left out.

    Jobs that hold GPUs come first, then waiting jobs, each in the order of their names.
    """
    # Phase 1: sum each job's GPUs. Pools with partitions count parts, so convert them.
    held: dict[str, float] = defaultdict(float)
    pools: dict[str, str] = {}
    parts = {pool.name: pool.parts_per_gpu for pool in snapshot.pools}
    for admitted in snapshot.admitted:
        gpus = admitted.gpus / parts.get(admitted.pool, 1)
        held[admitted.gang.key] += 0 if admitted.is_foreign else gpus
        pools.setdefault(admitted.gang.key, admitted.pool)
    # Phase 2: choose jobs. The bound keeps the number of series independent of the number of jobs.
    active = [job for job in jobs if held.get(job.key) or is_queued(job)]
    if not most:
        return (), len(active)
    active.sort(key=lambda job: (not held.get(job.key), job.key))
    series = tuple(
        JobSeries(
            namespace=job.namespace,
            name=job.name,
            queue=job.spec.queue,
            user=job.spec.user or "",
            gpu_pool=pools.get(job.key, ""),
            gpus=held.get(job.key, 0),
            nodes=_nodes(job),
        )
        for job in active[:most]
    )
    return series, len(active) - len(series)


def _nodes(job: Job) -> tuple[str, ...]:
    places = job.status.assignment
    return () if places is None else tuple(sorted(set(places.node_names())))


def _node_series(node: Node) -> NodeSeries:
    return NodeSeries(name=node.name, gpu_pool=node.pool, domain="/".join(node.domains))
