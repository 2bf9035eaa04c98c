"""Convert jobs of a cluster to rows of a trace. Pure.

`duration_seconds` is the run time of a job at its full size. It follows from the productive
GPU-seconds, whatever the size was meanwhile. The simulator itself adds starts, repeated steps and
recoveries. A job without an account (it held no GPU, or an old version ran it) gets the time
between its admission and its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from drumline.overview.held import held_gpu_seconds
from drumline.overview.jobs import priority_values
from drumline.overview.objects import ClusterObjects, JobObject, seconds
from drumline_contract import plain
from drumline_simulator.input.trace import TraceJob

_UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTrace:
    """A trace, and the jobs that it lacks.

    Attributes:
        jobs: jobs in order of submission.
        never_ran: number of jobs that have not run yet and have no length.
        cut: number of running jobs without a known end, which have their run time so far.
    """

    jobs: tuple[TraceJob, ...]
    never_ran: int
    cut: int


def trace_of(cluster: ClusterObjects, *, anonymous: bool) -> ExportedTrace:
    """Return the jobs that ran or run.

    Args:
        cluster: jobs and priority classes.
        anonymous: whether jobs, users and queues are numbered.
    """
    priorities, default = priority_values(cluster.priorities)
    submitted = [
        (begin, job)
        for job in cluster.jobs
        if (begin := seconds(job.metadata.creation_timestamp)) is not None
    ]
    submitted.sort(key=lambda entry: (entry[0], entry[1].key))
    first = submitted[0][0] if submitted else 0.0
    rows: list[TraceJob] = []
    cut = 0
    for begin, job in submitted:
        length = _length(job, now=cluster.as_of)
        if length is None:
            continue
        cut += job.status.assignment is not None and seconds(job.status.expected_end) is None
        priority = job.status.priority
        if priority is None:
            priority = priorities.get(job.spec.priority_class_name or "", default)
        rows.append(_row(job, submit=begin - first, length=length, priority=priority))
    jobs = _numbered(rows) if anonymous else tuple(rows)
    return ExportedTrace(jobs=jobs, never_ran=len(cluster.jobs) - len(rows), cut=cut)


def _row(job: JobObject, *, submit: float, length: float, priority: int) -> TraceJob:
    spec = job.spec
    topology = spec.topology
    elastic = spec.min_nodes is not None and spec.min_nodes < spec.nodes
    return TraceJob(
        line=None,
        name=plain(job.key),
        submit_seconds=round(submit, 3),
        gpus=spec.nodes * spec.gpus_per_node,
        duration_seconds=round(length, 3),
        user=plain(spec.user or _UNKNOWN),
        queue=plain(spec.queue),
        priority=priority,
        nodes=spec.nodes,
        min_nodes=spec.min_nodes if elastic else None,
        required_level=plain(topology.required) if topology and topology.required else None,
        preferred_level=plain(topology.preferred) if topology and topology.preferred else None,
    )


def _length(job: JobObject, *, now: float) -> float | None:
    """Return the seconds at full size, at least one, or None if it never ran or wants no GPU."""
    status = job.status
    gpus = job.spec.nodes * job.spec.gpus_per_node + job.spec.role_gpus
    if not gpus:
        return None
    productive = held_gpu_seconds(job, now=now)["productive"]
    admitted = seconds(status.admitted_at)
    if not productive:
        if admitted is None or job.status.gpu_seconds is not None:
            return None
        end = seconds(status.finished_at) or (now if status.assignment is not None else admitted)
        productive = (end - admitted) * gpus
    if status.assignment is not None and (end := seconds(status.expected_end)) is not None:
        productive += max(0.0, end - now) * job.gpus
    return max(1.0, productive / gpus) if productive > 0 else None


def _numbered(rows: Iterable[TraceJob]) -> tuple[TraceJob, ...]:
    jobs = tuple(rows)
    users = _numbers("user", (job.user for job in jobs))
    queues = _numbers("queue", (job.queue for job in jobs))
    return tuple(
        replace(job, name=f"job-{at}", user=users[job.user], queue=queues[job.queue])
        for at, job in enumerate(jobs, start=1)
    )


def _numbers(prefix: str, names: Iterable[str]) -> Mapping[str, str]:
    """Return numbers in the order of first use."""
    return {name: f"{prefix}-{at}" for at, name in enumerate(dict.fromkeys(names), start=1)}
