"""Leave jobs alone for a while whose statuses the API server does not write.

A policy or a webhook may refuse the status, or the object may be as large as etcd allows. Without a
pause, each cycle would decide the same place or eviction again, and no other job would get the
place. A refusal pauses the job for 10, 20, 40 ... up to 600 seconds. An error that may pass pauses
it from the second one on, for 40 seconds at most: an outage of the API server hits each job.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Final

from drumline.controller.job_events import JobEvents
from drumline.controller.state.snapshots import Backoff, is_ahead
from drumline.kube.errors import KubeError
from drumline.lifecycle.model.job import Job
from drumline.telemetry import logs

log = logs.get("drumline.controller.scheduler.unwritten_statuses")

_MOST_PASSING: Final = 3
"""Steps of the backoff after errors that may pass."""


class StatusNotWrittenError(Exception):
    """A job's status was not written, so its decision is void for now."""


class UnwrittenStatuses:
    """The pauses of jobs whose statuses were not written.

    Args:
        backoffs: earliest times of the jobs' next placements, by uid.
        job_events: writes events that users read.
    """

    def __init__(self, *, backoffs: MutableMapping[str, Backoff], job_events: JobEvents) -> None:
        self._backoffs = backoffs
        self._job_events = job_events

    def ensure_writable(self, job: Job, *, now: float) -> None:
        """Check that a job may be written.

        Raises:
            StatusNotWrittenError: its pause is not over.
        """
        backoff = self._backoffs.get(job.uid)
        if backoff is not None and backoff.of_write and is_ahead(backoff.until, now=now):
            raise StatusNotWrittenError(backoff.cause)

    def note(self, job: Job, error: KubeError, *, now: float) -> StatusNotWrittenError:
        """Begin the pause of a job. Return the error to raise.

        Args:
            job: the job.
            error: the answer of the API server.
            now: seconds since the epoch.
        """
        before = self._backoffs.get(job.uid)
        count = 1 if before is None or not before.of_write else before.count + 1
        steps = min(count - 1, _MOST_PASSING) if error.retryable else count
        cause = f"its status could not be written: {error}"
        backoff = replace(Backoff.after(steps, cause=cause, count=count, now=now), of_write=True)
        self._backoffs[job.uid] = backoff
        log.warning(
            "status_write_failed",
            job=job.key,
            error=str(error),
            retry_in_seconds=backoff.until - now,
        )
        if not error.retryable:
            self._job_events.status_refused(job, message=cause)
        return StatusNotWrittenError(cause)
