"""The only way in which a job's status is written, whatever component decided it.

A write is conditional on the version that was read. If its answer is lost (no answer, a 5xx, or a
conflict after such an attempt), the job is read back: either it shows what was written, or another
version, or the same one. In the last case the write may still arrive until the API server drops it
(`WRITE_DEADLINE_SECONDS`); so long it is in doubt, and the scheduler keeps free what it would take
(`jobs.jobs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from drumline.controller.informers.scheduled_state import scheduled_state
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
from drumline_api.jobstatus import TrainingJobStatus

log = logs.get("drumline.controller.jobs.status_writer")

LOOK_SECONDS: Final = 1.0
"""Between two looks at the jobs in doubt."""
LOOKS_AT_ONCE: Final = 32
_LOOK: Final = Sending(retry=ONCE, deadline_seconds=WRITE_DEADLINE_SECONDS)


class StatusWriter:
    """Writes a job's status unless it was written since, and makes it the newest version known.

    Args:
        client: fenced writes to the API server.
        jobs: takes in what was written, before its event comes.
        wake_scheduler: called when a job may need a place or has given one back.
        clock: seconds; never goes back.
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
        """Replace the status of `job` as it was read; what `as_written` adds goes with it.

        Raises:
            Conflict: it was written meanwhile (a user's edit, or another leader).
            KubeError: anything else. The write may have been carried out (`maybe_done`); then the
                job is in doubt until `settle_doubts` has read it.
        """
        status = as_written(job, status, now=self._wall())
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
        if scheduled_state(status) != scheduled_state(job.status):
            self._wake_scheduler()

    async def settle_doubts(self) -> None:
        """Read jobs in doubt again and again until none is; never returns."""
        while True:
            await self._has_doubts.wait()
            await asyncio.sleep(LOOK_SECONDS)
            await self.look_at_doubts()

    async def look_at_doubts(self) -> None:
        """Read every job in doubt once."""
        before = list(self._jobs.in_doubt())
        for first in range(0, len(before), LOOKS_AT_ONCE):
            await asyncio.gather(*map(self._read_back, before[first : first + LOOKS_AT_ONCE]))
        left = {doubt.read.uid for doubt in self._jobs.in_doubt()}
        if not left:
            self._has_doubts.clear()
        if not before or any(doubt.read.uid not in left for doubt in before):
            self._wake_scheduler()

    async def _was_written(self, job: Job, status: TrainingJobStatus) -> bool:
        """Whether the job has this status; if that cannot be said yet, it is in doubt."""
        doubt = self._jobs.doubt(job, status, until=self._clock() + WRITE_DEADLINE_SECONDS)
        self._has_doubts.set()
        log.warning("write_in_doubt", job=job.key, version=job.resource_version)
        stored = await self._read_back(doubt)
        return stored is not None and _plain(stored.status) == _plain(status)

    async def _read_back(self, doubt: WriteInDoubt) -> Job | None:
        """The job as it is stored, if that decides what is in doubt."""
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
        if stored.uid != job.uid:
            jobs.end_doubt(doubt)
            return None
        if stored.resource_version == job.resource_version:
            if self._clock() >= doubt.until:
                jobs.end_doubt(doubt)
            return None
        jobs.assume(stored)
        return stored


def _plain(status: TrainingJobStatus) -> dict[str, object]:
    """A status as the API server stores it."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
