"""Jobs as rows, and the lines they wait in.

Inside a queue the operator's order is the same under every policy: higher priority, then longer
waiting, then uid (`scheduler.queueing.order`). So a position needs no cycle. The order of the
queues depends on the policy, and is visible in the expected starts that the operator writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from drumline.overview.held import held_gpu_seconds, stays_of
from drumline.overview.objects import JobObject, seconds
from drumline.overview.pool_units import PoolUnits
from drumline.overview.rows import JobRow, StayRow
from drumline_api.objects import builtin
from drumline_contract import plain

NOT_SEEN: Final = "NotSeen"
OPERATOR: Final = "drumline.dev/operator"
NOT_IN_LINE: Final = frozenset(
    (
        "ConfigRefused",
        "InvalidConfig",
        "MemoryExceeded",
        "OperatorError",
        "PriorityClassNotFound",
        "Unreadable",
    )
)
"""Reasons of jobs that no cycle considers until somebody changes them."""

CANNOT_START: Final = frozenset(
    (
        "CapacityTypeNotAccepted",
        "CircularDependency",
        "ClaimInUse",
        "ExceedsCluster",
        "ExceedsQuota",
        "LevelLabelMissing",
        "NamespaceNotAllowed",
        "NamespaceTerminating",
        "NoQuotaInPool",
        "NodesUnavailable",
        "PoolNotFound",
        "PoolWithoutNodes",
        "PredecessorFailed",
        "PredecessorNotFound",
        "PriceTooHigh",
        "PriorityTooHigh",
        "QueueHeld",
        "QueueNotFound",
        "ResourceNotAllowed",
        "ResourceNotOffered",
        "SchedulerError",
        "TopologyLevelUnknown",
    )
)
"""Reasons of jobs in line that start only after a change: they have no expected start. The same as
in `drumline_scheduler.forecast.lines`, which takes too long to import."""
WAITS_FOR_HOLDERS: Final = frozenset(
    (
        "BehindHigherPriority",
        "InsufficientGpus",
        "InsufficientResources",
        "QuotaExhausted",
        "SweepLimit",
        "TopologyDoesNotFit",
        "UserLimit",
        "WaitingForVictims",
        "WouldDelayReservation",
    )
)
"""Reasons of jobs that start once others end."""

WHOLE_GPUS: Final = PoolUnits()

Lines = Mapping[str, Sequence[JobObject]]
"""Waiting jobs of each queue, the next one first."""


def priority_values(classes: Iterable[builtin.PriorityClass]) -> tuple[Mapping[str, int], int]:
    """Return the value of each priority class by name, and the value of a job without one."""
    classes = tuple(classes)
    values = {each.metadata.name: each.value for each in classes}
    # The API server takes the lowest one where a race has left several defaults.
    return values, min((each.value for each in classes if each.global_default), default=0)


def lines(jobs: Iterable[JobObject], priorities: Iterable[builtin.PriorityClass]) -> Lines:
    """Return the waiting jobs of each queue in the operator's order."""
    values, default = priority_values(priorities)
    waiting: dict[str, list[tuple[int, float, str, JobObject]]] = defaultdict(list)
    for job in jobs:
        if is_in_line(job):
            name = job.spec.priority_class_name
            # A named class that is missing gives None, and the status then has the last known
            # value.
            priority = values.get(name) if name else default if values else None
            if priority is None:  # a tenant may not read priority classes
                priority = job.status.priority or 0
            # Before the operator has seen a job, its creation is the closest time.
            since = seconds(job.status.queued_at) or seconds(job.metadata.creation_timestamp) or 0.0
            waiting[job.spec.queue].append((-priority, since, job.metadata.uid, job))
    # The uid breaks ties, so the order never depends on the order of a list.
    return {
        queue: [entry[3] for entry in sorted(line, key=_order)] for queue, line in waiting.items()
    }


def is_in_line(job: JobObject) -> bool:
    """Return whether the scheduler tries to place the job."""
    return (
        job.waits
        # A job with places is not in line, even while its phase is still Pending.
        and job.status.assignment is None
        and job.status.reason not in NOT_IN_LINE
        and job.spec.managed_by in (None, OPERATOR)
    )


def positions(waiting: Lines) -> dict[str, int]:
    """Return the place in the line of its queue by `namespace/name`, from 1."""
    return {job.key: place for line in waiting.values() for place, job in enumerate(line, start=1)}


def job_rows(
    jobs: Iterable[JobObject],
    *,
    now: float,
    places: Mapping[str, int],
    units: PoolUnits = WHOLE_GPUS,
) -> tuple[JobRow, ...]:
    """Return a row for each job: first those with GPUs, then the lines, then ended jobs.

    Args:
        jobs: jobs in any order.
        now: seconds since the epoch.
        places: `positions`.
        units: units of the pools.
    """
    rows = [job_row(job, now=now, position=places.get(job.key), units=units) for job in jobs]
    return tuple(sorted(rows, key=_shown_order))


def job_row(
    job: JobObject, *, now: float, position: int | None, units: PoolUnits = WHOLE_GPUS
) -> JobRow:
    """Return the row of one job. All its texts are safe for a terminal.

    Args:
        job: the TrainingJob.
        now: Unix time in seconds.
        position: place in its queue, from 1. None: it does not wait.
        units: units of pools, to convert parts to GPUs.
    """
    status, metadata = job.status, job.metadata
    # Forecasts of jobs that cannot start are stale, so they are hidden.
    is_dated = position is not None and status.reason not in CANNOT_START
    share = units.share(job)
    stays = stays_of(job, now=now)
    # Seconds of parts of GPUs count by their share, as on a bill.
    held = round(sum(held_gpu_seconds(job, now=now).values()) * share)
    return JobRow(
        namespace=plain(metadata.namespace),
        name=plain(metadata.name),
        queue=plain(job.spec.queue),
        user=plain(job.spec.user or ""),
        phase=plain(status.phase or NOT_SEEN),
        reason=plain(status.reason or ""),
        message=plain(status.message or ""),
        pods=job.pods,
        gpus=job.gpus,
        pool=plain(status.assignment.gpu_pool) if status.assignment else "",
        surplus_pool=plain(_surplus_pool(job)),
        ready=plain(status.ready or ""),
        step=status.step,
        total_steps=status.total_steps,
        loss=plain(status.loss or ""),
        tokens_per_second=status.tokens_per_second,
        restarts=status.restarts,
        position=position,
        created_at=seconds(metadata.creation_timestamp),
        queued_at=seconds(status.queued_at),
        # Jobs with GPUs do not wait, whatever their reason says.
        waits_since=None if position is None else _waits_since(job, stays),
        message_at=None if position is None else job.metadata.written_at,
        admitted_at=seconds(status.admitted_at),
        started_at=seconds(status.started_at),
        finished_at=seconds(status.finished_at),
        expected_start=seconds(status.expected_start) if is_dated else None,
        expected_start_by=seconds(status.expected_start_by) if is_dated else None,
        expected_end=seconds(status.expected_end) if status.assignment else None,
        gpu_seconds=held or None,
        stays=stays,
        partition=plain(job.spec.gpu_partition or ""),
        in_gpus=None if share == 1 else float(job.gpus * share),
    )


def _waits_since(job: JobObject, stays: Sequence[StayRow]) -> float | None:
    """Return when it began to wait: queued, or without GPUs again after it had some.

    `queuedAt` keeps its place in line over a preemption, so it may lie before the last stay.
    """
    queued = seconds(job.status.queued_at) or seconds(job.metadata.creation_timestamp)
    # The end of the last stay: after a preemption the wait starts there.
    return max((at for at in (queued, *(stay.ends_at for stay in stays)) if at), default=None)


def _surplus_pool(job: JobObject) -> str:
    surplus = job.status.assignment.surplus if job.status.assignment else None
    return surplus.gpu_pool if surplus is not None else ""


def _order(entry: tuple[int, float, str, JobObject]) -> tuple[int, float, str]:
    return entry[:3]


def _shown_order(row: JobRow) -> tuple[int, float, str, float, str]:
    """Return the sort key: running jobs, waiting jobs by queue, suspended jobs, ended jobs."""
    # One tuple per group, with a constant in each place that the group does not use.
    if row.finished_at is not None:
        return (3, 0.0, "", -row.finished_at, row.name)
    if row.pool:
        return (0, row.admitted_at or 0.0, "", 0.0, row.name)
    if row.position is not None:
        return (1, 0.0, row.queue, float(row.position), row.name)
    return (2, 0.0, row.queue, row.created_at or 0.0, row.name)
