"""Notices: a gang is asked to save by a deadline, answers, or need not save any more.

A request is stored in the status (`status.disruption`) before it is sent. The answer is written to
`status.checkpoint` in the same write as its consequence.
"""

from __future__ import annotations

from typing import Final

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import timeline
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.timestamps import parse_timestamp, precise_timestamp
from drumline.lifecycle.plan.actions import JobPlan, Notify
from drumline.lifecycle.plan.situation import Situation
from drumline_api.incidents import IncidentStatus
from drumline_api.jobstatus import DisruptionStatus, TrainingJobStatus
from drumline_contract import FaultClass, Notice, NoticeAnswer

SAVE_SECONDS: Final = 300.0
"""Time for which a save is awaited if no deadline is announced."""


def save_deadline(disruption: DisruptionStatus) -> float:
    """Return the time until which a save is awaited (seconds since the epoch)."""
    if disruption.deadline is None:
        return parse_timestamp(disruption.requested_at) + SAVE_SECONDS
    return parse_timestamp(disruption.deadline)


def request_save(situation: Situation, disruption: DisruptionStatus, *, leave: bool) -> JobPlan:
    """Send the notice once, and wait for its answer.

    Args:
        situation: the job and what is observed of it.
        disruption: why and until when to save.
        leave: whether the ranks stop after the save.
    """
    deadline = save_deadline(disruption)
    answered = answer_to(situation.observed, disruption) is not None
    if answered or situation.observed.notified == disruption.id:
        return JobPlan(requeue_at=deadline)
    uid = situation.job.uid
    notice = Notice(job_uid=uid, id=disruption.id, deadline=deadline, leave=leave)
    return JobPlan(actions=(Notify(notice=notice),), requeue_at=deadline)


def answer_to(observed: Observed, disruption: DisruptionStatus) -> NoticeAnswer | None:
    """Return the agents' answer to this disruption's notice, or None if they do not have it."""
    answer = observed.notice
    return answer if answer is not None and answer.id == disruption.id else None


def with_answer(job: Job, answer: NoticeAnswer | None, *, now: float) -> TrainingJobStatus:
    """Return the job's status with the checkpoint that the agents acknowledged, if any.

    Args:
        job: the job with its present status.
        answer: the agents' answer. None before they answer.
        now: Unix time in seconds.
    """
    if answer is None or answer.step is None:
        return job.status
    return transitions.with_checkpoint(job, job.status, answer.step, answer.digest, now=now)


def withdraw_notice(job: Job, observed: Observed) -> tuple[Notify, ...]:
    """Withdraw a notice that the agents still hold although its disruption is over."""
    # An answered notice needs no withdrawal: the agents are done with it.
    answer, disruption = observed.notice, job.status.disruption
    # After a restart of the operator only the agents know the notice, so their answer counts too.
    settled = answer is not None and (answer.step is not None or answer.error != "")
    sent = observed.notified or (answer.id if answer is not None else "")
    if settled and answer is not None and answer.id == sent:
        return ()
    if sent in {"", disruption.id if disruption else "", observed.withdrawn}:
        return ()
    notice = Notice(job_uid=job.uid, id=sent, deadline=0.0, leave=False, withdraw=True)
    return (Notify(notice=notice),)


def announced_incident(
    job: Job, disruption: DisruptionStatus, *, begin: float, failed_step: int | None
) -> IncidentStatus:
    """Return the incident of an announced fault. It begins at `begin`, already detected.

    Args:
        job: the job with its present status.
        disruption: the announced disruption.
        begin: Unix time in seconds.
        failed_step: newest step before the fault.
    """
    incident = IncidentStatus(
        generation=(job.status.generation or 0) + 1,
        attempt=0,
        fault_class=FaultClass.PREEMPTION,
        cause=disruption.reason or f"{disruption.kind} by {disruption.by}",
        index=disruption.indices[0] if disruption.indices else None,
        fault_at=precise_timestamp(begin),
        failed_step=failed_step,
    )
    return timeline.with_boundary(incident, timeline.DETECTED, at=begin)
