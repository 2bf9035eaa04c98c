"""The bill of each override of a queue: GPU-hours that its job keeps from other queues.

The operator writes the GPUs of a job since a moment, and the GPU-seconds before it
(`status.overrides`). The sum since then is computed here.

Example: 8 GPUs since 12:00, 3,600 GPU-seconds before, until 14:00. At 13:00 the bill is 9
GPU-hours, and 8 more are expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from drumline.overview.objects import seconds
from drumline.overview.rows import OverrideRow
from drumline_api.objects.custom import StoredOverrideUse, StoredTrainingQueue
from drumline_contract import plain

_HOUR = 3600.0


def override_rows(queues: Iterable[StoredTrainingQueue], *, now: float) -> tuple[OverrideRow, ...]:
    """Return a row for each override of these queues."""
    return tuple(
        OverrideRow(
            job=plain(override.job),
            queue=plain(queue.metadata.name),
            until=until,
            granted_by=plain(override.granted_by),
            reason=plain(override.reason),
            gpus=use.gpus if now < until else 0,
            gpu_hours=round(gpu_seconds_at(use, until=until, now=now) / _HOUR, 1),
            expected_gpu_hours=expected_gpu_hours(use.gpus, until=until, now=now),
        )
        for queue in queues
        for override in queue.spec.overrides or ()
        if (until := seconds(override.until)) is not None
        for use in [_use_of(override.job, queue)]
    )


def gpu_seconds_at(use: StoredOverrideUse, *, until: float, now: float) -> float:
    """Return the GPU-seconds of a use so far.

    Args:
        use: the use as written.
        until: time at which the override ends.
        now: seconds since the epoch.
    """
    since = seconds(use.at)
    if since is None:
        return float(use.gpu_seconds)
    return use.gpu_seconds + use.gpus * max(0.0, min(now, until) - since)


def expected_gpu_hours(gpus: float, *, until: float, now: float) -> float:
    """Return the GPU-hours that follow if a job keeps these GPUs until its override ends.

    Args:
        gpus: GPUs that it keeps from other queues.
        until: time at which the override ends.
        now: seconds since the epoch.
    """
    return round(gpus * max(0.0, until - now) / _HOUR, 1)


def override_text(row: OverrideRow) -> str:
    """Return whose override it is, until when and why, and its bill."""
    until = datetime.fromtimestamp(row.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        f"override of {row.job} until {until}, granted by {row.granted_by} ({row.reason}):"
        f" keeps {row.gpus:g} GPUs from other queues, {row.gpu_hours:.1f} GPU-hours so far,"
        f" {row.expected_gpu_hours:.1f} more expected"
    )


def _use_of(job: str, queue: StoredTrainingQueue) -> StoredOverrideUse:
    uses = queue.status.overrides or ()
    return next((use for use in uses if use.job == job), StoredOverrideUse(job=job))
