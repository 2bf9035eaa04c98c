"""Deadlines of a start and a run, the restart backoff, and the pace of agents' reports.

All times are in seconds since the epoch.
"""

from __future__ import annotations

from typing import Final

from drumline.lifecycle.incidents.restart_budgets import OWN_FAULTS
from drumline.lifecycle.model.conditions import condition
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.conditions import ConditionType, Reason
from drumline_api.jobstatus import TrainingJobStatus

SENTENCE_SECONDS: Final = 10.0
"""Time after which the write budget allows another message of the agents."""
MAX_BACKOFF_SECONDS: Final = 300.0
BACKOFF_MEMORY_SECONDS: Final = 3600.0
"""Age beyond which restarts do not count for the backoff."""
_OWN_FAULTS: Final = (Reason.POD_FAILED, Reason.OUT_OF_MEMORY, Reason.HANG)


def generation_at(job: Job) -> float:
    """Return the start of the current generation."""
    return parse_timestamp(job.status.generation_at) if job.status.generation_at else job.created_at


def backoff_seconds(status: TrainingJobStatus) -> float:
    """Return the seconds by which the creation of this generation's pods is delayed.

    0 unless the program failed. The first restart within an hour is not delayed, the next ones by
    5, 10, 20 ... 300 s.
    """
    # Only restarts of a failed program back off. A lost node or a preemption costs no extra time.
    recovering = condition(status, ConditionType.RECOVERING)
    if recovering is None or recovering.status != "True" or status.generation_at is None:
        return 0.0
    if recovering.reason not in _OWN_FAULTS:
        return 0.0
    until = parse_timestamp(status.generation_at)
    begin = until - BACKOFF_MEMORY_SECONDS
    restarts = sum(
        charge.count
        for budget in status.budgets or ()
        if budget.fault_class in OWN_FAULTS
        for charge in budget.recent
        if begin < parse_timestamp(charge.at) <= until
    )
    return restart_backoff_seconds(restarts)


def restart_backoff_seconds(restarts: int) -> float:
    """Return 0 s before the first restart, then 5, 10, 20 ... up to 300 s."""
    return 0.0 if restarts <= 1 else min(MAX_BACKOFF_SECONDS, 5.0 * 2 ** min(restarts - 2, 16))


def start_deadline(job: Job) -> float:
    """Return the time by which all members must run, or lost members must be placed again.

    For lost members it counts from the loss, if that is later than the generation.
    """
    begin = generation_at(job) + backoff_seconds(job.status)
    recovering = condition(job.status, ConditionType.RECOVERING)
    if job.status.assignment is not None and job.status.assignment.lost and recovering is not None:
        begin = max(begin, parse_timestamp(recovering.last_transition_time))
    return begin + job.spec.start_deadline_seconds


def active_deadline(job: Job) -> float | None:
    """Return the end of activeDeadlineSeconds, or None without a limit or a running job."""
    limit = job.spec.active_deadline_seconds
    if limit is None or job.status.started_at is None:
        return None
    return parse_timestamp(job.status.started_at) + limit
