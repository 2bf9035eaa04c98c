"""From what a trace says to gangs on one cluster: which queue, how many pods of how many GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.scheduling import Gang, Resources
from drumline.simulator.arrivals import Arrival
from drumline.simulator.cluster import Cluster
from drumline.simulator.input.errors import BadFile
from drumline.simulator.input.trace import TraceJob


def arrivals(
    jobs: Iterable[TraceJob], *, cluster: Cluster, default_queue: str, file: str
) -> list[Arrival]:
    """The jobs of a trace as gangs.

    A job that does not say over how many nodes it goes gets the fewest over which its GPUs can be
    spread evenly; one that fits no node of any pool is refused, as it could only wait for ever.
    Times are counted from the first submission.

    Args:
        jobs: of the trace.
        cluster: where they will run.
        default_queue: for jobs whose queue is not in the cluster; '' if there is none.
        file: the trace's name, for what is said about it.

    Raises:
        BadFile: at the first job that no queue or no node of the cluster could take.
    """
    held = list(jobs)
    begins = min((job.submit_seconds for job in held), default=0.0)
    largest = max((node.allocatable.gpus for node in cluster.nodes), default=0)
    queues = {queue.name for queue in cluster.queues}
    levels = {level for pool in cluster.pools for level in pool.levels}
    found: list[Arrival] = []
    for number, job in enumerate(held):
        _refuse_levels(job, levels=levels, file=file)
        queue = job.queue if job.queue in queues else default_queue
        if not queue:
            why = f"queue {job.queue!r} is not in the cluster, which has no defaultQueue"
            raise _refused(job, file=file, field="queue", why=why)
        nodes = job.nodes or _fewest(job, largest=largest, file=file)
        if job.gpus // nodes > largest:
            why = f"{job.gpus // nodes} GPUs per node, and the largest node has {largest}"
            raise _refused(job, file=file, field="gpus", why=why)
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
        found.append(Arrival(gang=gang, duration_seconds=job.duration_seconds))
    return found


def _refuse_levels(job: TraceJob, *, levels: set[str], file: str) -> None:
    asked = {"required_level": job.required_level, "preferred_level": job.preferred_level}
    for field, level in asked.items():
        if level and level not in levels:
            known = ", ".join(sorted(levels)) or "none"
            why = f"no pool of the cluster has a level {level}; levels: {known}"
            raise _refused(job, file=file, field=field, why=why)


def _fewest(job: TraceJob, *, largest: int, file: str) -> int:
    if not largest:
        raise _refused(job, file=file, field="gpus", why="no node of the cluster has GPUs")
    return next(n for n in range(-(-job.gpus // largest), job.gpus + 1) if job.gpus % n == 0)


def _refused(job: TraceJob, *, file: str, field: str, why: str) -> BadFile:
    where = file if job.line is not None else f"{file}, job {job.name}"
    return BadFile(file=where, line=job.line, field=field, why=why)
