"""Order of jobs that start after each other (`spec.after`), updated by job events.

A job also starts after a job that holds its checkpoint folder (`checkpoint_folders`).

It contains only jobs that still wait for another job. Other jobs cost nothing here. A job that ends
or is deleted wakes its successors, which write their new state (`EventHandlers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace

from drumline.controller.jobs.checkpoint_folders import CheckpointFolders
from drumline.lifecycle.model.chains import (
    FREE,
    Circle,
    Standing,
    circles,
    standing_of,
    unmet_of,
)
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.acceptance import is_ours
from drumline_scheduler import Predecessor, PredecessorState


class Chains:
    """The edges between jobs and their predecessors.

    Args:
        job_at: returns the newest version of the job `namespace/name`.
    """

    def __init__(self, job_at: Callable[[str], Job | None]) -> None:
        self._job_at = job_at
        self._folders = CheckpointFolders(job_at)
        self._predecessors: dict[str, tuple[str, ...]] = {}
        """Keys of the predecessors of each waiting job, by its key."""
        self._successors: defaultdict[str, set[str]] = defaultdict(set)
        self._circles: dict[str, Circle] = {}
        self._has_new_edges = False
        """True if an edge has changed since the circles were searched."""
        self._standings: dict[str, tuple[Job, Standing]] = {}
        """Standings with the version of the job, by key. A change of the job or of one of its
        predecessors drops them."""

    def changed(self, before: Job | None, after: Job | None) -> None:
        """Process that a job was created, deleted or changed."""
        job = after or before
        if job is None:
            return
        self._folders.changed(before, after)
        for key in (job.key, *self._successors.get(job.key, ())):
            self._standings.pop(key, None)
        # Jobs that wait for no other job have no edges, so most events end at the comparison below.
        waits = after is not None and after.spec.after and _is_waiting(after)
        edges = tuple(f"{job.namespace}/{each.job}" for each in unmet_of(job)) if waits else ()
        known = self._predecessors.get(job.key, ())
        if edges == known:
            return
        # Replace the edges of this job in both directions.
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
        # Circles are found lazily: many edges may change before somebody reads them.
        self._has_new_edges = True

    def successors(self, key: str) -> Collection[str]:
        """Return the keys of the jobs that wait for the job with this key."""
        return tuple(self._successors.get(key, ()))

    def is_awaited(self, job: Job) -> bool:
        """Return whether a successor has not yet recorded that this job ended as required.

        The reconciler keeps such a job until then, because its end would be forgotten with it.
        """
        successors = map(self._job_at, self.successors(job.key))
        return any(
            after.job == job.name
            for successor in successors
            if successor is not None
            for after in self.standing_of(successor).met
        )

    def standing_of(self, job: Job) -> Standing:
        """Return the state of a job's predecessors.

        A change of a predecessor costs O(predecessors of the job). A change of an edge costs
        O(edges), once for all jobs.
        """
        standing = self._standing_in_chain(job)
        holder = self._folders.holder_for(job)
        if holder is None:
            return standing
        held = Predecessor(key=holder.key, must_succeed=False, state=PredecessorState.HOLDS_FOLDER)
        return replace(standing, unmet=(*standing.unmet, held))

    def _standing_in_chain(self, job: Job) -> Standing:
        if job.spec.after is None or job.key not in self._predecessors:
            return FREE
        if self._has_new_edges:
            self._search_circles()
        known = self._standings.get(job.key)
        if known is None or known[0] is not job:
            circle = self._circles.get(job.key)
            known = (job, standing_of(job, job_at=self._job_at, circle=circle))
            self._standings[job.key] = known
        return known[1]

    def _search_circles(self) -> None:
        before, self._circles = self._circles, {}
        self._has_new_edges = False
        for circle in circles(self._predecessors):
            known = before.get(circle.keys[0], circle)
            kept = known if known == circle else circle  # the same object: its standings stay
            self._circles.update(dict.fromkeys(circle.members, kept))
        for key in before.keys() | self._circles.keys():
            if before.get(key) is not self._circles.get(key):
                self._standings.pop(key, None)


def _is_waiting(job: Job) -> bool:
    return is_ours(job) and not job.finished and not job.deleting
