"""Remember which starts were checked before other gangs were evicted or moved for them.

A start that passes is not checked again for `PASSED_SECONDS`, unless the job's spec changes. A
start that would be refused counts as a failed start in the job's status, so a new leader knows it.
The gang backs off as after any failed start, is checked again, and fails after `maxFailedStarts`. A
running gang that would be moved or repaired at the cost of others stays as it is for
`REFUSED_SECONDS`. A start that could not be checked counts as nothing, and the gang gets only free
capacity for a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from drumline.controller.state.snapshots import Backoff, CheckedStart, SnapshotBuilder
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import nodes_by_pool
from drumline.lifecycle.plan.slow_start import start_refused
from drumline.lifecycle.plan.start_check import StartDoubt, StartRefusal
from drumline_api.conditions import Reason
from drumline_api.jobstatus import TrainingJobStatus

PASSED_SECONDS: Final = 30.0
REFUSED_SECONDS: Final = 600.0
MAX_PASSED: Final = 10_000
"""Most jobs whose passed checks are remembered."""


class Check(Protocol):
    """Checks with the API server whether a job could start."""

    def __call__(
        self,
        job: Job,
        *,
        replaces: bool,
        leaving: Iterable[Job],
        beside: Iterable[Job],
        promised: Iterable[Job],
    ) -> Awaitable[StartRefusal | StartDoubt | None]:
        """Return why the start would be refused or is in doubt, or None."""
        ...


@dataclass(frozen=True, slots=True)
class RefusedStart:
    """A start that would be refused, or of which that is not known."""

    why: StartRefusal | StartDoubt

    def status(self, job: Job, *, now: float) -> TrainingJobStatus | None:
        """Return the status of a job with this failed start, or None if its status stays.

        A running gang keeps its places, and a doubt is not a failure. The snapshot remembers both.
        """
        if job.status.assignment is not None or isinstance(self.why, StartDoubt):
            return None
        status = start_refused(
            job,
            message=self.why.message,
            remedy=self.why.remedy,
            now=now,
            reason=Reason.API_REFUSED,
        )
        return status.model_copy(update={"nominated": None})


class CheckedStarts:
    """Checks each start once, and passes refusals to the snapshots.

    Args:
        check: checks with the API server.
        scheduling: receives the results.
    """

    def __init__(self, *, check: Check, scheduling: SnapshotBuilder) -> None:
        self._check = check
        self._scheduling = scheduling
        self._passed: dict[str, tuple[object, float]] = {}
        """The start and the time until which the result counts, by uid."""

    async def refusal_of(
        self,
        job: Job,
        *,
        now: float,
        leaving: Iterable[Job] = (),
        beside: Iterable[Job] = (),
        promised: Iterable[Job] = (),
    ) -> RefusedStart | None:
        """Return why a job could not start. None if it could, or if that is not known.

        Args:
            job: the job with the assignment that it would start with, or runs with.
            now: seconds since the epoch.
            leaving: jobs that leave for it, with the places that they release.
            beside: other jobs of its group, which start together with it.
            promised: other jobs that start before it.
        """
        # A recent result for this spec in these pools saves the requests. A pool has a profile.
        start = job.object_generation, frozenset(nodes_by_pool(job.status))
        known = self._passed.get(job.uid)
        if known is not None and known[0] == start and now < known[1]:
            return None
        # Quota of the namespace that its own pods or leaving jobs release counts as free.
        runs = job.status.started_at is not None
        why = await self._check(
            job,
            replaces=runs,
            leaving=[other for other in leaving if other.namespace == job.namespace],
            beside=[other for other in beside if other.namespace == job.namespace],
            promised=[other for other in promised if other.namespace == job.namespace],
        )
        if why is None:
            while len(self._passed) >= MAX_PASSED:
                del self._passed[next(iter(self._passed))]
            self._passed[job.uid] = (start, now + PASSED_SECONDS)
            return None
        # Refused or in doubt. Without a failed start in the job's status, remember it here.
        self._passed.pop(job.uid, None)
        if runs or isinstance(why, StartDoubt):
            self._scheduling.checked[job.uid] = CheckedStart(
                generation=job.object_generation,
                failed_starts=job.status.failed_starts or 0,
                until=now + (why.seconds if isinstance(why, StartDoubt) else REFUSED_SECONDS),
                message=why.message,
            )
        return RefusedStart(why)

    def note(self, job: Job, status: TrainingJobStatus, *, now: float) -> None:
        """Record that a refused start was written. The job is checked again after its backoff.

        Args:
            job: the job with its present status.
            status: the status that refuses the start.
            now: Unix time in seconds.
        """
        count = status.failed_starts or 0
        self._scheduling.checked[job.uid] = CheckedStart(
            generation=job.object_generation, failed_starts=count
        )
        self._scheduling.backoffs[job.uid] = Backoff.after(
            count, cause=status.incident or str(status.reason), count=count, now=now
        )
