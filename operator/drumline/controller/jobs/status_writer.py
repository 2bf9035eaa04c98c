"""The only writer of job statuses, for all components.

A write is conditional on the version that was read. Its answer can be lost: no answer, a 5xx, or a
conflict after such an attempt. Then the job is read back. It shows the written status, or another
version, or the same version. In the last case the write may still take effect until the API server
drops it (`WRITE_DEADLINE_SECONDS`). Until then it is in doubt, and the scheduler keeps the affected
resources free (`jobs.jobs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from drumline.controller.jobs.conversion import readable_job_of
from drumline.controller.jobs.jobs import JobCache, WriteInDoubt
from drumline.kube import codec, reads, writes
from drumline.kube.client import WRITE_DEADLINE_SECONDS, KubeClient
from drumline.kube.errors import KubeError, NotFound, NotLeader
from drumline.kube.kinds import TRAINING_JOBS
from drumline.kube.request import Sending
from drumline.kube.retry import ONCE
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.readiness import as_written
from drumline.telemetry import logs
from drumline_api.conditions import Phase
from drumline_api.jobstatus import TrainingJobStatus

log = logs.get("drumline.controller.jobs.status_writer")

LOOK_SECONDS: Final = 1.0
"""Time between two reads of the jobs in doubt."""
LOOKS_AT_ONCE: Final = 32
_KEEPS_PLACES: Final = {Phase.STARTING, Phase.RUNNING, Phase.RECOVERING}
_LOOK: Final = Sending(retry=ONCE, deadline_seconds=WRITE_DEADLINE_SECONDS)


class StatusWriter:
    """Write a job's status unless it has changed since, and make it the newest version.

    Args:
        client: fenced client for the API server.
        jobs: receives the written version before its event arrives.
        wake_scheduler: called when a job may need a place or has released one.
        clock: monotonic seconds.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        jobs: JobCache,
        wake_scheduler: Callable[[], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._wake_scheduler = wake_scheduler
        self._clock = clock
        self._wall = wall
        self._has_doubts = asyncio.Event()

    async def write(self, job: Job, status: TrainingJobStatus) -> None:
        """Replace the status of `job` as it was read, with the additions of `as_written`.

        Raises:
            Conflict: the job was written meanwhile, by a user or another leader.
            KubeError: any other error. The write may have taken effect (`maybe_done`). Then the job
                is in doubt until `settle_doubts` has read it.
        """
        status = as_written(job, status, now=self._wall())
        # Conditional on uid and version: a write for an older version, or for a deleted job of the
        # same name, cannot take effect.
        try:
            written = await writes.replace_status(
                self._client,
                TRAINING_JOBS,
                name=job.name,
                namespace=job.namespace,
                uid=job.uid,
                resource_version=job.resource_version,
                status=_plain(status),
            )
        except NotLeader:
            raise
        except KubeError as error:
            if not error.maybe_done or not await self._was_written(job, status):
                raise
        else:
            self._jobs.assume(
                replace(job, resource_version=written.resource_version, status=status)
            )
        # Assumed first, then wake: the cycle must see the new version.
        if scheduled_state(status) != scheduled_state(job.status):
            self._wake_scheduler()

    async def settle_doubts(self) -> None:
        """Read jobs in doubt repeatedly until none is left. Never returns."""
        while True:
            await self._has_doubts.wait()
            await asyncio.sleep(LOOK_SECONDS)
            await self.read_doubts()

    async def read_doubts(self) -> None:
        """Read every job in doubt once."""
        before = list(self._jobs.in_doubt())
        # Bounded: after an outage of the API server every job may be in doubt.
        for first in range(0, len(before), LOOKS_AT_ONCE):
            await asyncio.gather(*map(self._read_back, before[first : first + LOOKS_AT_ONCE]))
        left = {doubt.read.uid for doubt in self._jobs.in_doubt()}
        if not left:
            self._has_doubts.clear()
        # A settled doubt frees or takes places.
        if not before or any(doubt.read.uid not in left for doubt in before):
            self._wake_scheduler()

    async def _was_written(self, job: Job, status: TrainingJobStatus) -> bool:
        """Return whether the job has this status. If that is unknown, the job stays in doubt."""
        doubt = self._jobs.doubt(job, status, until=self._clock() + WRITE_DEADLINE_SECONDS)
        self._has_doubts.set()
        log.warning("write_in_doubt", job=job.key, version=job.resource_version)
        stored = await self._read_back(doubt)
        return stored is not None and _plain(stored.status) == _plain(status)

    async def _read_back(self, doubt: WriteInDoubt) -> Job | None:
        """Return the stored job if it settles the doubt, or None."""
        job, jobs = doubt.read, self._jobs
        try:
            document = await reads.get(
                self._client, TRAINING_JOBS, name=job.name, namespace=job.namespace, sending=_LOOK
            )
            stored = readable_job_of(codec.training_job(document), known=job)
        except NotFound:
            jobs.end_doubt(doubt)
            return None
        except (KubeError, codec.Undecodable) as error:  # held until it can be read
            log.warning("job_not_read_back", job=job.key, error=str(error))
            return None
        # Another job of the same name: the one in doubt is gone, with all writes to it.
        if stored.uid != job.uid:
            jobs.end_doubt(doubt)
            return None
        # Unchanged: the write was lost, or is still on its way until its deadline.
        if stored.resource_version == job.resource_version:
            if self._clock() >= doubt.until:
                jobs.end_doubt(doubt)
            return None
        jobs.assume(stored)
        return stored


def _plain(status: TrainingJobStatus) -> dict[str, object]:
    """Return a status in the form that the API server stores."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def scheduled_state(status: TrainingJobStatus) -> tuple[object, ...]:
    """Return the value whose change wakes the scheduler.

    It changes when a place is needed or released, or when a member leaves or may move. It stays the
    same when a gang starts, runs or recovers on the places that it holds. A thousand starting jobs
    therefore do not wake the scheduler.
    """
    leaves = status.disruption is not None
    movable = status.disruption is not None and bool(status.disruption.movable)
    phase = None if status.phase in _KEEPS_PLACES and not movable else status.phase
    return (status.assignment, phase, leaves, movable)
