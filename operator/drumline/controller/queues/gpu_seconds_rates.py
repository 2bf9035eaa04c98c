"""Cache each job's GPU use over time. An entry is recomputed when the job's status changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from drumline.lifecycle.incidents.gpu_seconds import GpuSecondsRate, rate_of
from drumline.lifecycle.model.job import Job


class JobUse(NamedTuple):
    """A job and the rate of its GPU-seconds. None before its first GPU."""

    job: Job
    rate: GpuSecondsRate | None


class GpuSecondsRates:
    """The rates of all jobs, between observations. For one event loop."""

    def __init__(self) -> None:
        self._known: dict[str, JobUse] = {}
        """Keyed by uid of the job."""

    def of(self, jobs: Iterable[Job]) -> tuple[JobUse, ...]:
        """Return these jobs with their rates, and forget all other jobs. O(jobs)."""
        before, self._known = self._known, {}
        for job in jobs:
            # Specs and statuses are never changed in place, so identity says that nothing changed.
            known = before.get(job.uid)
            if (
                known is None
                or known.job.spec is not job.spec
                or known.job.status is not job.status
            ):
                known = JobUse(job, rate_of(job.spec, job.status))
            self._known[job.uid] = known
        return tuple(self._known.values())
