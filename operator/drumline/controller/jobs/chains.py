"""Which jobs start after which, kept by the changes of jobs.

Only jobs that still wait for another are in it: the others cost nothing here. A job that ends or
goes wakes its successors, whose statuses then say so (`EventHandlers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from drumline.lifecycle.model.chains import FREE, Standing, circles, standing_of, unmet_of
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.acceptance import is_ours


class Chains:
    """The edges between jobs and their predecessors.

    Args:
        job_at: the newest version known of the job `namespace/name`.
    """

    def __init__(self, job_at: Callable[[str], Job | None]) -> None:
        self._job_at = job_at
        self._predecessors: dict[str, tuple[str, ...]] = {}
        """By key of a job that waits: keys of what it waits for."""
        self._successors: defaultdict[str, set[str]] = defaultdict(set)
        self._circles: dict[str, tuple[str, ...]] | None = {}
        """None: an edge has changed since they were worked out."""

    def changed(self, before: Job | None, after: Job | None) -> None:
        """A job came, went, or has another version."""
        job = after or before
        if job is None:
            return
        waits = after is not None and after.spec.after and _is_waiting(after)
        edges = tuple(f"{job.namespace}/{each.job}" for each in unmet_of(job)) if waits else ()
        known = self._predecessors.get(job.key, ())
        if edges == known:
            return
        for key in known:
            self._successors[key].discard(job.key)
            if not self._successors[key]:
                del self._successors[key]
        for key in edges:
            self._successors[key].add(job.key)
        if edges:
            self._predecessors[job.key] = edges
        else:
            del self._predecessors[job.key]
        self._circles = None

    def successors(self, key: str) -> Collection[str]:
        """Keys of the jobs that wait for the job with this key."""
        return tuple(self._successors.get(key, ()))

    def is_awaited(self, job: Job) -> bool:
        """Whether a successor has not yet written that this job has ended as it should."""
        successors = map(self._job_at, self.successors(job.key))
        return any(
            after.job == job.name
            for successor in successors
            if successor is not None
            for after in self.standing_of(successor).met
        )

    def standing_of(self, job: Job) -> Standing:
        """How far the predecessors of a job are.

        O(its predecessors), and O(edges) once for all jobs after an edge has changed.
        """
        if job.spec.after is None or job.key not in self._predecessors:
            return FREE
        if self._circles is None:
            self._circles = circles(self._predecessors)
        circle = self._circles.get(job.key, ())
        return standing_of(job, job_at=self._job_at, circle=circle)


def _is_waiting(job: Job) -> bool:
    return is_ours(job) and not job.finished and not job.deleting
