"""Evictions: send a notice, wait for a checkpoint, then give up nodes.

A preempted job, and a job whose queue is stopped, leaves as a whole, and its agents stop once they
have saved. An elastic job may have to give up only some members, and continues without them. After
the deadline the last verified checkpoint counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import ledger
from drumline.lifecycle.incidents.failures import FailureClass, classify, final_report
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.failure import member_failures
from drumline.lifecycle.plan.notices import (
    announced_incident,
    answer_to,
    request_save,
    save_deadline,
    with_answer,
)
from drumline.lifecycle.plan.situation import Situation
from drumline_api.conditions import DisruptionKind
from drumline_api.incidents import IncidentStatus
from drumline_api.jobstatus import DisruptionStatus, TrainingJobStatus

_EVICTIONS: Final = (DisruptionKind.PREEMPTION, DisruptionKind.QUEUE_STOPPED)


def preempt(situation: Situation) -> JobPlan | None:
    """Return the next step of a job that is preempted or whose queue is stopped, or None."""
    disruption = situation.job.status.disruption
    if disruption is None or disruption.kind not in _EVICTIONS:
        return None
    if disruption.indices is not None:
        return _evict_surplus(situation, disruption)
    # Leave as soon as waiting cannot gain anything: saved, ended, or not able to save.
    saved = saved_checkpoint(situation, disruption)
    ended = all(pod.end is not None for pod in situation.gang.present)
    if saved is not None or ended or not can_save(situation, disruption):
        return JobPlan(status=_preempted_status(situation, disruption, saved))
    return request_save(situation, disruption, leave=True)


def _evict_surplus(situation: Situation, disruption: DisruptionStatus) -> JobPlan | None:
    """Return the next step of an elastic job that gives members up. None if failures come first."""
    job, gang, now = situation.job, situation.gang, situation.now
    if gang.lost or member_failures(situation):
        return None
    answer = answer_to(situation.observed, disruption)
    # The others can continue only from a checkpoint, so save first.
    saved = answer is not None and answer.step is not None
    if not saved and can_save(situation, disruption):
        return request_save(situation, disruption, leave=False)
    # The checkpoint, the incident and the smaller gang are one write.
    status = with_answer(job, answer, now=now)
    step = answer.step if answer is not None else None
    status = ledger.with_incident(status, _incident(job, disruption, failed_step=step, now=now))
    evicted = set(disruption.indices or ())
    kept = [position for position, member in enumerate(gang.members) if member.index not in evicted]
    resized = transitions.resized(
        replace(job, status=status), kept=kept, added=(), epoch=situation.epoch, now=now
    )
    return JobPlan(status=resized)


def saved_checkpoint(situation: Situation, disruption: DisruptionStatus) -> tuple[int, str] | None:
    """Return step and digest that the agents acknowledged, in an answer or in final reports."""
    answer = answer_to(situation.observed, disruption)
    if answer is not None and answer.step is not None:
        return answer.step, answer.digest
    # Agents that left have no status any more. All of them must have reported.
    left = [pod for pod in situation.gang.present if _left_on_request(pod)]
    if len(left) < situation.job.size:
        return None
    for pod in left:
        report = final_report(pod.end) if pod.end is not None else None
        if report is not None and report.progress.checkpoint_step is not None:
            return report.progress.checkpoint_step, report.progress.checkpoint_digest
    return None


def _left_on_request(pod: PodFacts) -> bool:
    failure = classify(pod)
    return failure is not None and failure.failure_class is FailureClass.LEFT_ON_REQUEST


def can_save(situation: Situation, disruption: DisruptionStatus) -> bool:
    """Return whether the agents may still report a checkpoint before the deadline."""
    answer = answer_to(situation.observed, disruption)
    failed = any(
        failure.failure_class is not FailureClass.LEFT_ON_REQUEST
        for failure in member_failures(situation)
    )
    return (
        situation.saves_on_request
        and situation.is_running
        and situation.now < save_deadline(disruption)
        and not failed
        and not (answer is not None and answer.error)
    )


def _preempted_status(
    situation: Situation, disruption: DisruptionStatus, saved: tuple[int, str] | None
) -> TrainingJobStatus:
    job, now = situation.job, situation.now
    status = job.status
    if saved is not None:
        status = transitions.with_checkpoint(job, status, *saved, now=now)
    # The incident has the lost steps, and is written together with the requeued status.
    checkpoint = status.checkpoint
    done = saved[0] if saved is not None else status.step
    incident = _incident(job, disruption, failed_step=done, now=now)
    if checkpoint is not None and done is not None:
        lost = max(0, done - checkpoint.step)
        update = {"restored_step": checkpoint.step, "steps_lost": lost}
        incident = incident.model_copy(update=update)
    job = replace(job, status=ledger.with_incident(status, incident))
    return transitions.preempted(job, saved=saved is not None, now=now)


def _incident(
    job: Job, disruption: DisruptionStatus, *, failed_step: int | None, now: float
) -> IncidentStatus:
    requested = min(now, parse_timestamp(disruption.requested_at))
    return announced_incident(job, disruption, begin=requested, failed_step=failed_step)
