"""The only way in which a job's status is written, whatever component decided it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drumline.api.jobstatus import TrainingJobStatus
from drumline.controller.cache.cluster import ClusterCache
from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import TRAINING_JOBS
from drumline.lifecycle.model.job import Job


class StatusWriter:
    """Writes a job's status unless it was written since, and makes it the newest version known.

    Args:
        client: fenced writes to the API server.
        state: the caches.
        wake_scheduler: called when a job may need a place or has given one back.
    """

    def __init__(
        self, *, client: KubeClient, state: ClusterCache, wake_scheduler: Callable[[], None]
    ) -> None:
        self._client = client
        self._state = state
        self._wake_scheduler = wake_scheduler

    async def write(self, job: Job, status: TrainingJobStatus) -> None:
        """Replace the status of `job` as it was read.

        Raises:
            Conflict: it was written meanwhile (a user's edit, or another leader).
            KubeError: anything else.
        """
        written = await writes.replace_status(
            self._client,
            TRAINING_JOBS,
            name=job.name,
            namespace=job.namespace,
            uid=job.uid,
            resource_version=job.resource_version,
            status=status.model_dump(mode="json", by_alias=True, exclude_none=True),
        )
        self._state.jobs.assume(
            replace(job, resource_version=written.resource_version, status=status)
        )
        if status.assignment != job.status.assignment or status.phase != job.status.phase:
            self._wake_scheduler()
