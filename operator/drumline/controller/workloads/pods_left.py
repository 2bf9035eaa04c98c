"""How many pods of a workload are still to run at a time, once some have succeeded."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.controller.workloads.conversion import Shape
from drumline.kube.workload_views import JobsView


def pods_left(shape: Shape, *, succeeded: Mapping[str, int]) -> int:
    """The pods that are to run at a time: those that nobody has seen succeed.

    A Job counts its pods by itself, a JobSet only whole Jobs: its pods are seen. A Job of which no
    pod is seen is to run whole.

        3 Jobs of 4 pods; of a 1 pod has succeeded, of b all 4       -> 3 of a, 4 of the third
        the same once the JobSet has counted b as one that succeeded -> the same
        a Job of 10 completions, 4 at a time, of which 8 succeeded   -> 2

    Where the JobSet counts more Jobs than are seen to have ended, pods of those are gone: then the
    Jobs that seem nearest to their end are taken for these, which charges too much rather than too
    little.

    Args:
        shape: as the workload's object says.
        succeeded: pods that are seen, by uid of their Job.
    """
    jobs = shape.jobs
    if jobs is None:
        return shape.pods
    begun = sorted(filter(None, (_left(jobs, seen) for seen in succeeded.values())))
    ended = len(succeeded) - len(begun)
    begun = begun[max(0, jobs.ended - ended) :]
    unseen = max(0, jobs.number - max(ended, jobs.ended) - len(begun))
    at_a_time = sum(min(jobs.parallelism, left) for left in begun)
    return min(shape.pods, at_a_time + unseen * min(jobs.parallelism, _left(jobs, 0)))


def _left(jobs: JobsView, seen: int) -> int:
    """How many pods of a Job have still to succeed."""
    return max(0, jobs.completions - max(jobs.succeeded, seen))
