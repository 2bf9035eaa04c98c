"""Jobs that have ended, as the archive keeps them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from drumline.overview.held import held_gpu_seconds, stays_of
from drumline.overview.objects import JobObject, seconds
from drumline_api.objects.custom import StoredGpuSeconds, StoredStay

DELETED: Final = "Deleted"


def ended_job(job: JobObject, *, deleted_at: str | None) -> JobObject:
    """Return the job as it ended. A deleted job released its GPUs at its deletion.

    Args:
        job: the job as its object was last.
        deleted_at: time of the deletion of an object whose job had not ended (RFC 3339).
    """
    moment = seconds(deleted_at)
    if job.finished or deleted_at is None or moment is None:
        return job
    stays = [
        StoredStay(
            since=_rfc3339(stay.begins_at), until=_rfc3339(stay.ends_at), gpus=int(stay.gpus)
        )
        for stay in stays_of(job, now=moment)
    ]
    account = job.status.gpu_seconds
    held = StoredGpuSeconds(
        until=deleted_at,
        **held_gpu_seconds(job, now=moment),
        stays=stays,
        parts=account and account.parts,
        parts_per_gpu=account and account.parts_per_gpu,
    )
    status = msgspec.structs.replace(
        job.status,
        phase=DELETED,
        reason=job.status.reason and f"was {job.status.phase}: {job.status.reason}",
        assignment=None,
        finished_at=deleted_at,
        gpu_seconds=None if account is None else held,
    )
    return msgspec.structs.replace(job, status=status)


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
