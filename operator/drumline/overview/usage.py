"""Use of jobs and foreign pods in a period, by queue, user, namespace, phase or job.

A job's account (`status.gpuSeconds`) has the use of its life by state, and its stays with their
number of GPUs. So the use in a period is known to the second, and its states are taken in
proportion. If a job had more stays than its account keeps, the earlier use is taken in proportion
to time, and is reported as estimated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from drumline.overview.budgets import budget_row
from drumline.overview.held import STATES, held_gpu_seconds, stays_of
from drumline.overview.jobs import NOT_SEEN, WHOLE_GPUS
from drumline.overview.objects import JobObject, seconds
from drumline.overview.rows import UsageRow
from drumline.overview.workloads import FOREIGN_PHASE, FOREIGN_USER, WorkloadUse
from drumline_api.objects.custom import StoredTrainingQueue
from drumline_contract import plain

NO_USER: Final = "-"


def _user(job: JobObject) -> str:
    return job.spec.user or NO_USER


GROUPS: Final[Mapping[str, Callable[[JobObject], str]]] = {
    "queue": lambda job: job.spec.queue,
    "user": _user,
    "namespace": lambda job: job.metadata.namespace,
    "phase": lambda job: job.status.phase or NOT_SEEN,
    "job": lambda job: job.key,
}
"""Values to group by."""


@dataclass(slots=True)
class _Sum:
    jobs: int = 0
    workloads: int = 0
    foreign: float = 0.0
    estimated: float = 0.0
    by_state: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))


def usage_rows(
    jobs: Iterable[JobObject],
    *,
    workloads: Iterable[WorkloadUse] = (),
    by: Sequence[str],
    since: float | None,
    now: float,
) -> tuple[UsageRow, ...]:
    """Return a row for each group, the largest use first.

    Args:
        jobs: jobs of any phase.
        workloads: use of foreign pods.
        by: keys of `GROUPS`.
        since: begin of the period in seconds since the epoch. None: everything that is known.
        now: end of the period.

    Raises:
        KeyError: a key is not in `GROUPS`.
    """
    values = [GROUPS[name] for name in by]
    sums: dict[tuple[str, ...], _Sum] = defaultdict(_Sum)
    for job in jobs:
        held = held_gpu_seconds(job, now=now)
        whole = sum(held.values())
        inside = _held_since(job, whole, since=since, now=now)
        if not whole or not inside.gpu_seconds:
            continue
        group = sums[tuple(plain(value(job)) for value in values)]
        group.jobs += 1
        share = float(WHOLE_GPUS.share(job))
        for state in STATES:
            group.by_state[state] += share * held[state] * inside.gpu_seconds / whole
        group.estimated += share * inside.estimated
    for use in workloads:
        held = sum(stay.gpu_seconds(since=since or 0.0) for stay in use.stays)
        if held:
            group = sums[tuple(_group_of(use, name) for name in by)]
            group.workloads += 1
            group.foreign += held
    rows = [_row(group, total) for group, total in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_seconds, row.by)))


def with_budgets(
    rows: Iterable[UsageRow], queues: Iterable[StoredTrainingQueue], *, now: float
) -> tuple[UsageRow, ...]:
    """Return rows that are grouped by queue, with the budgets of these queues.

    Args:
        rows: usage by queue.
        queues: the queues with their budgets.
        now: Unix time in seconds.
    """
    budgets = {plain(queue.metadata.name): budget_row(queue, now=now) for queue in queues}
    return tuple(msgspec.structs.replace(row, budget=budgets.get(row.by[0])) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """A job's GPU-seconds in the period."""

    gpu_seconds: float
    estimated: float = 0.0
    """Part of `gpu_seconds` that is taken in proportion to time."""


def _held_since(job: JobObject, whole: int, *, since: float | None, now: float) -> _Inside:
    begin = seconds(job.metadata.creation_timestamp)
    if since is None or begin is None or begin >= since:
        return _Inside(gpu_seconds=whole)
    stays = stays_of(job, now=now)
    known = sum(stay.gpu_seconds() for stay in stays)
    inside = sum(stay.gpu_seconds(since=since) for stay in stays)
    before = stays[0].begins_at if stays else _end(job, now=now)
    part = max(0.0, before - since) / (before - begin) if before > begin else 0.0
    estimated = max(0.0, whole - known) * part
    return _Inside(gpu_seconds=min(inside + estimated, whole), estimated=estimated)


def _end(job: JobObject, *, now: float) -> float:
    """Up to when it may have held GPUs."""
    account = job.status.gpu_seconds
    if account is None or job.held_places is not None:
        return now
    return seconds(account.until) or now


def _group_of(use: WorkloadUse, name: str) -> str:
    match name:
        case "queue":
            return use.queue
        case "user":
            return FOREIGN_USER
        case "namespace":
            return use.namespace
        case "phase":
            return FOREIGN_PHASE
        case _:
            return use.workload


def _row(group: tuple[str, ...], total: _Sum) -> UsageRow:
    by_state = {state: round(amount) for state, amount in total.by_state.items()}
    return UsageRow(
        by=group,
        jobs=total.jobs,
        workloads=total.workloads,
        gpu_seconds=sum(by_state.values()) + round(total.foreign),
        foreign=round(total.foreign),
        productive=by_state["productive"],
        starting=by_state["starting"],
        repeated=by_state["repeated"],
        recovering=by_state["recovering"],
        estimated_gpu_seconds=round(total.estimated),
    )
