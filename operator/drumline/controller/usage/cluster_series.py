"""What the caches say of single jobs and nodes, as values for `telemetry.cluster_series`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
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
"""The operator acts on a start that is over with its next look at the job."""


def cluster_series(
    jobs: Collection[Job],
    *,
    snapshot: Snapshot,
    disruptions: Iterable[Disruption],
    pods_of: Callable[[str, str], Collection[PodFacts]],
    most_jobs: int,
    now: float,
) -> ClusterSeries:
    """The series as of now. O(jobs + nodes).

    Args:
        jobs: all of the cluster.
        snapshot: what they hold, and the nodes.
        disruptions: announced, one for each node.
        pods_of: the pods of a job, by namespace and uid.
        most_jobs: so many have series of their own, those that hold GPUs first.
        now: seconds since the epoch.
    """
    chosen, left_out = _job_series(jobs, snapshot=snapshot, most=most_jobs)
    partial = (partial_gang(job, pods_of(job.namespace, job.uid), now=now) for job in jobs)
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
        partial=tuple(gang for gang in partial if gang is not None),
    )


def partial_gang(job: Job, pods: Collection[PodFacts], *, now: float) -> PartialGang | None:
    """The gang, if some of its members are bound and others not for longer than a start may take.

    A member is bound from the moment its pod exists: pods are created with their node. What an
    elastic gang is still to gain is no member yet.
    """
    places = job.status.assignment
    if job.finished or places is None or now < start_deadline(job) + GRACE_SECONDS:
        return None
    expected = set(places.indices()) - set(places.joining or ())
    missing = len(expected - {pod.index for pod in pods})
    if not 0 < missing < len(expected):
        return None
    return PartialGang(
        namespace=job.namespace, name=job.name, queue=job.spec.queue, missing=missing
    )


def _job_series(
    jobs: Collection[Job], *, snapshot: Snapshot, most: int
) -> tuple[tuple[JobSeries, ...], int]:
    """Of those jobs that hold GPUs, then of those that wait, in the order of their names."""
    held: dict[str, float] = defaultdict(float)
    pools: dict[str, str] = {}
    parts = {pool.name: pool.parts_per_gpu for pool in snapshot.pools}
    for admitted in snapshot.admitted:
        gpus = admitted.gpus / parts.get(admitted.pool, 1)
        held[admitted.gang.key] += 0 if admitted.is_foreign else gpus
        pools.setdefault(admitted.gang.key, admitted.pool)
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
