"""Queries about the eviction of a job: for which job it leaves, and whether it still must."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import base_size, members_of
from drumline.lifecycle.model.roles import scheduling_order
from drumline.lifecycle.plan.acceptance import refusal_of, waits
from drumline_api.conditions import DisruptionKind
from drumline_scheduler.decisions import Blocked, BlockReason, Victim
from drumline_scheduler.decisions_by_job import kept_places


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEviction:
    """Reason and destination of a job's eviction."""

    by: str
    by_uid: str
    message: str
    indices: list[int] | None = None
    """Pod indices that an elastic gang gives up. None means all."""
    moves_to_pool: str = ""
    moves_to: tuple[str, ...] = ()
    kind: DisruptionKind = DisruptionKind.PREEMPTION


def nominated_in_vain(rejected: Iterable[Blocked], jobs: Mapping[str, Job]) -> list[Job]:
    """Return rejected jobs with a nomination that they do not need any more.

    Only a job that waits for its victims keeps its nomination. Ten thousand jobs may be rejected,
    and hardly any has one, so no task is made for the others.
    """
    return [
        job
        for blocked in rejected
        if blocked.reason is not BlockReason.WAITING_FOR_VICTIMS
        # A surplus gang has no job of its own.
        and (job := jobs.get(blocked.uid)) is not None
        and job.status.nominated is not None
    ]


def is_preempted(job: Job) -> bool:
    """Return whether the job must leave, wholly or in part, for another job or its own move."""
    disruption = job.status.disruption
    return disruption is not None and disruption.kind is DisruptionKind.PREEMPTION


def reason_to_stay(job: Job) -> str | None:
    """Return why a job that must leave can stay. None if it does not have to leave."""
    disruption = job.status.disruption
    if disruption is not None and disruption.kind is DisruptionKind.QUEUE_STOPPED:
        return "its queue lets it run again"
    return "its destination nodes are no longer free" if is_preempted(job) else None


def preemptor_name(job: Job) -> str:
    """Return the name of the job for which it is evicted, for messages."""
    return job.status.disruption.by if job.status.disruption else "the scheduler"


def preemptor_uid(job: Job) -> str:
    """Return the uid of the job for which it is evicted, or ''."""
    return job.status.disruption.by_uid if job.status.disruption else ""


def given_up_indices(victim: Victim, job: Job) -> list[int] | None:
    """Return indices of the members that a job gives up. None means all members."""
    kept = kept_places(victim, smallest=base_size(job.status))
    if kept is None:
        return None
    staying = frozenset(kept)
    return [
        member.index
        for position, member in enumerate(scheduling_order(job.spec, members_of(job.status)))
        if position not in staying
    ]


def still_needs_nodes(preemptor: Job | None) -> bool:
    """Return whether this job still waits for nodes that its victims or its own pods hold."""
    if preemptor is None or preemptor.status.nominated is None:
        return False
    if preemptor.finished or preemptor.deleting:
        return False
    if preemptor.status.assignment is not None:
        return True
    return waits(preemptor) and refusal_of(preemptor) is None
