"""The bills of overrides in a cycle: what jobs keep from other queues, and what they would take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from drumline.overview.overrides import expected_gpu_hours, override_rows
from drumline.overview.rows import OverrideRow
from drumline_api.objects.custom import StoredTrainingQueue
from drumline_cli.decide.job_decisions import JobDecision
from drumline_scheduler.decisions import VictimReason
from drumline_scheduler.model import Gang, Snapshot
from drumline_scheduler.overrides import gpus_below_guarantee


def bills_before(
    queues: Iterable[StoredTrainingQueue],
    *,
    snapshot: Snapshot,
    pending: Sequence[Gang],
    now: float,
) -> tuple[OverrideRow, ...]:
    """Return the bills at the start of a cycle.

    The GPUs are those of the snapshot. Without a bill in the status, a job has kept them since its
    admission.

    Args:
        queues: the queues with their statuses.
        snapshot: the cluster.
        pending: its waiting gangs.
        now: seconds since the epoch.
    """
    given = list(queues)
    written = {use.job for queue in given for use in queue.status.overrides or ()}
    below = gpus_below_guarantee(snapshot, pending=pending, now=now)
    since = {held.gang.key: held.admitted_at for held in snapshot.admitted}
    rows: list[OverrideRow] = []
    for row in override_rows(given, now=now):
        gpus, hours = below.get((row.queue, row.job), 0), row.gpu_hours
        if row.job not in written and gpus:
            hours = expected_gpu_hours(gpus, until=now, now=since.get(row.job, now))
        expected = expected_gpu_hours(gpus, until=row.until, now=now)
        rows.append(replace(row, gpus=gpus, gpu_hours=hours, expected_gpu_hours=expected))
    return tuple(rows)


def bills(
    before: Sequence[OverrideRow], decisions: Iterable[JobDecision], *, now: float
) -> tuple[OverrideRow, ...]:
    """Return the bills with the GPUs of the jobs that end for a job in this cycle.

    Args:
        before: the bills at the start of the cycle.
        decisions: the decisions of the cycle.
        now: seconds since the epoch.
    """
    taken: dict[str, float] = defaultdict(float)
    for row in decisions:
        if row.reason == VictimReason.OVERRIDE:
            taken[row.by] += row.gpus / row.parts_per_gpu
    return tuple(
        replace(
            row,
            gpus=row.gpus + taken[row.job],
            expected_gpu_hours=expected_gpu_hours(
                row.gpus + taken[row.job], until=row.until, now=now
            ),
        )
        if row.job in taken
        else row
        for row in before
    )
