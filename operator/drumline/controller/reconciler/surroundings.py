"""Report what was deleted or relabelled under a job that holds nodes."""

from __future__ import annotations

from drumline.controller.state.cluster import ClusterCache
from drumline.lifecycle.model.job import Job
from drumline_api.conditions import Reason


def orphaned(job: Job, state: ClusterCache) -> tuple[Reason, str] | None:
    """Report that the queue or the pool of a job with nodes was deleted."""
    places = job.status.assignment
    if places is None or job.finished:
        return None
    if state.queues.get(job.spec.queue) is None and not state.queues.problem(job.spec.queue):
        text = (
            f"TrainingQueue {job.spec.queue} was deleted: no quota counts this job; create the"
            " queue again"
        )
        return Reason.QUEUE_DELETED, text
    pool = places.gpu_pool
    if state.pools.get(pool) is None and not state.pools.problem(pool):
        text = f"GpuPool {pool} was deleted: lost pods get no other node; create the pool again"
        return Reason.POOL_DELETED, text
    return None


def broken_domain(job: Job, state: ClusterCache) -> str:
    """Report that the nodes of a gang are not in one required domain any more.

    A domain is the labels of its level and of all broader ones: rack-0 of another block is another
    domain. A node without one of the labels is in none.
    """
    places, topology = job.status.assignment, job.spec.topology
    if places is None or topology is None or topology.required is None or job.finished:
        return ""
    pool = state.pools.get(places.gpu_pool)
    levels = (pool.topology_levels if pool else None) or ()
    required = next((at for at, each in enumerate(levels) if each.name == topology.required), None)
    if required is None:
        return ""
    keys = [level.node_label for level in levels[: required + 1]]
    known = [state.nodes.labels[node] for node in places.node_names() if node in state.nodes.labels]
    domains = {tuple(labels.get(key, "") for key in keys) for labels in known}
    # The first level with two values, or with a node that has none.
    for key, values in zip(keys, map(set, zip(*domains, strict=True)), strict=False):
        if len(values) > 1 or "" in values:
            order = sorted(values, key=lambda value: (not value, value))
            named = " and ".join(value or "none" for value in order[:3])
            return (
                f"the required {topology.required} is broken: labels of its nodes name {named} now;"
                f" restore the label {key}, or suspend and resume the job to place it again"
            )
    return ""
