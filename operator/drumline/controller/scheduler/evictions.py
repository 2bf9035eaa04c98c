"""Questions about evictions to a job's status: for whom it leaves, and whether that still holds."""

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
    """Why a job is evicted, and where it moves."""

    by: str
    by_uid: str
    message: str
    indices: list[int] | None = None
    """Pod indices that an elastic gang gives up; None: all of them."""
    moves_to_pool: str = ""
    moves_to: tuple[str, ...] = ()
    kind: DisruptionKind = DisruptionKind.PREEMPTION


def nominated_in_vain(rejected: Iterable[Blocked], jobs: Mapping[str, Job]) -> list[Job]:
    """Rejected jobs that still have a nomination: only one that waits for its victims keeps it.

    Ten thousand may be rejected, and hardly any has one: no task is made for the rest.
    """
    return [
        jobs[blocked.uid]
        for blocked in rejected
        if blocked.reason is not BlockReason.WAITING_FOR_VICTIMS
        and jobs[blocked.uid].status.nominated is not None
    ]


def is_preempted(job: Job) -> bool:
    """Whether it was asked to leave, wholly or in part, for another job or for its own move."""
    disruption = job.status.disruption
    return disruption is not None and disruption.kind is DisruptionKind.PREEMPTION


def reason_to_stay(job: Job) -> str | None:
    """Why a job that was told to leave need not; None: it was told nothing."""
    disruption = job.status.disruption
    if disruption is not None and disruption.kind is DisruptionKind.QUEUE_STOPPED:
        return "its queue is open again"
    return "its destination nodes are no longer free" if is_preempted(job) else None


def preemptor_name(job: Job) -> str:
    """Whom it is evicted for, for people."""
    return job.status.disruption.by if job.status.disruption else "the scheduler"


def preemptor_uid(job: Job) -> str:
    """Uid of the job that it is evicted for; empty: of none."""
    return job.status.disruption.by_uid if job.status.disruption else ""


def given_up_indices(victim: Victim, job: Job) -> list[int] | None:
    """Indices of the members that a job gives up; None: all members."""
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
    """Whether this job still waits for nodes that its victims, or its own pods, are to leave."""
    if preemptor is None or preemptor.status.nominated is None:
        return False
    if preemptor.finished or preemptor.deleting:
        return False
    if preemptor.status.assignment is not None:
        return True
    return waits(preemptor) and refusal_of(preemptor) is None
