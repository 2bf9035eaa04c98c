"""Jobs that have ended, as the archive keeps them."""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.overview.held import held_gpu_seconds
from drumline.overview.objects import HeldGpuSeconds, JobObject, seconds

DELETED: Final = "Deleted"


def ended_job(job: JobObject, *, deleted_at: str | None) -> JobObject:
    """The job as it ended: one that was deleted gave its GPUs back at that moment.

    Args:
        job: as its object last was.
        deleted_at: when the object was deleted though the job had not ended (RFC 3339).
    """
    moment = seconds(deleted_at)
    if job.finished or deleted_at is None or moment is None:
        return job
    held = HeldGpuSeconds(until=deleted_at, **held_gpu_seconds(job, now=moment))
    status = msgspec.structs.replace(
        job.status,
        phase=DELETED,
        reason=job.status.reason and f"was {job.status.phase}: {job.status.reason}",
        assignment=None,
        finished_at=deleted_at,
        gpu_seconds=held if job.status.gpu_seconds is not None else None,
    )
    return msgspec.structs.replace(job, status=status)
