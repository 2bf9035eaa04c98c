"""Number of a workload's pods that still run concurrently after some have succeeded."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.controller.workloads.conversion import Shape
from drumline.kube.workload_views import JobsView


def pods_left(shape: Shape, *, succeeded: Mapping[str, int]) -> int:
    """Return the number of pods that run concurrently, without those seen to succeed.

    A Job counts its own pods. A JobSet counts only whole Jobs, so its pods are observed. A Job
    without an observed pod counts as a whole.

        3 Jobs of 4 pods; of a 1 pod has succeeded, of b all 4       -> 3 of a, 4 of the third
        the same once the JobSet has counted b as one that succeeded -> the same
        a Job of 10 completions, 4 at a time, of which 8 succeeded   -> 2

    If the JobSet counts more ended Jobs than were observed, pods of ended Jobs are gone. Then the
    Jobs nearest to their end count as those Jobs, which charges too much rather than too little.

    Args:
        shape: the shape in the workload's object.
        succeeded: number of observed succeeded pods, by uid of their Job.
    """
    jobs = shape.jobs
    if jobs is None:
        return shape.pods
    # Jobs with observed pods, without those that have ended.
    begun = sorted(filter(None, (_left(jobs, seen) for seen in succeeded.values())))
    ended = len(succeeded) - len(begun)
    begun = begun[max(0, jobs.ended - ended) :]
    # Jobs without any observed pod.
    unseen = max(0, jobs.number - max(ended, jobs.ended) - len(begun))
    at_a_time = sum(min(jobs.parallelism, left) for left in begun)
    return min(shape.pods, at_a_time + unseen * min(jobs.parallelism, _left(jobs, 0)))


def _left(jobs: JobsView, seen: int) -> int:
    """Return the number of a Job's pods that have not succeeded."""
    return max(0, jobs.completions - max(jobs.succeeded, seen))
