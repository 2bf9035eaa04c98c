"""Convert the jobs of a trace to gangs: their queue, number of pods and GPUs per pod."""

from __future__ import annotations

from collections.abc import Iterable

from drumline_scheduler import Gang, Resources
from drumline_simulator.cluster import Cluster
from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.input.trace import TraceJob
from drumline_simulator.workload import Arrival


def to_arrivals(
    jobs: Iterable[TraceJob], *, cluster: Cluster, default_queue: str, file: str
) -> list[Arrival]:
    """Return the jobs of a trace as gangs.

    A job without a number of nodes gets the fewest nodes over which its GPUs spread evenly. A job
    that fits no node of any pool is rejected, because it would wait forever. Times are relative to
    the first submission.

    Args:
        jobs: jobs of the trace.
        cluster: cluster that runs them.
        default_queue: queue for jobs whose queue is not in the cluster. Empty: none.
        file: name of the trace, for error messages.

    Raises:
        InvalidFileError: no queue or node of the cluster accepts a job.
    """
    trace_jobs = list(jobs)
    begins = min((job.submit_seconds for job in trace_jobs), default=0.0)
    largest = max((node.allocatable.gpus for node in cluster.nodes), default=0)
    queues = {queue.name for queue in cluster.queues}
    levels = {level for pool in cluster.pools for level in pool.levels}
    arrivals: list[Arrival] = []
    for number, job in enumerate(trace_jobs):
        _check_levels(job, levels=levels, file=file)
        queue = job.queue if job.queue in queues else default_queue
        if not queue:
            why = f"queue {job.queue!r} is not in the cluster, which has no defaultQueue"
            raise _error(job, file=file, field="queue", why=why)
        nodes = job.nodes or _fewest_nodes(job, largest=largest, file=file)
        if job.gpus // nodes > largest:
            why = f"{job.gpus // nodes} GPUs per node, but the largest node has {largest}"
            raise _error(job, file=file, field="gpus", why=why)
        gang = Gang(
            key=f"{queue}/{job.name}",
            uid=f"{number:06}",
            queue=queue,
            nodes=nodes,
            per_pod=Resources(gpus=job.gpus // nodes, pods=1),
            queued_at=job.submit_seconds - begins,
            priority=job.priority,
            user=job.user,
            sizes=tuple(range(job.min_nodes, nodes + 1)) if job.min_nodes else (),
            max_runtime_seconds=job.max_runtime_seconds,
            required_level=job.required_level,
            preferred_level=job.preferred_level,
        )
        arrivals.append(
            Arrival(
                gang=gang,
                duration_seconds=job.duration_seconds,
                checkpoint_seconds=job.checkpoint_seconds,
            )
        )
    return arrivals


def _check_levels(job: TraceJob, *, levels: set[str], file: str) -> None:
    requested = {"required_level": job.required_level, "preferred_level": job.preferred_level}
    for field, level in requested.items():
        if level and level not in levels:
            known = ", ".join(sorted(levels)) or "none"
            why = f"no pool of the cluster has a level {level}; levels: {known}"
            raise _error(job, file=file, field=field, why=why)


def _fewest_nodes(job: TraceJob, *, largest: int, file: str) -> int:
    if not largest:
        raise _error(job, file=file, field="gpus", why="no node of the cluster has GPUs")
    return next(n for n in range(-(-job.gpus // largest), job.gpus + 1) if job.gpus % n == 0)


def _error(job: TraceJob, *, file: str, field: str, why: str) -> InvalidFileError:
    where = file if job.line is not None else f"{file}, job {job.name}"
    return InvalidFileError(file=where, line=job.line, field=field, reason=why)
