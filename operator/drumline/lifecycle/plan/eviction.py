"""Eviction: a notice is sent, a checkpoint is waited for, then nodes are given up.

A preempted job leaves as a whole, and its agents stop once they have saved; an elastic job may be
asked for some members only and continues without them. Members on a node with an announced
disruption are rescheduled, and the others train until then. A request is durable in status
(`status.disruption`) before it is sent; the answer is written to `status.checkpoint` in the same
write that follows from it; after the deadline the last verified checkpoint counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from drumline.api.conditions import DisruptionKind, Reason
from drumline.api.incidents import IncidentStatus
from drumline.api.jobstatus import DisruptionStatus, TrainingJobStatus
from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import ledger, timeline
from drumline.lifecycle.incidents.failures import FailureClass, classify, final_report
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import NodeDisruption, Observed, PodFacts
from drumline.lifecycle.model.timestamps import parse_timestamp, precise_timestamp
from drumline.lifecycle.plan.actions import JobPlan, Notify
from drumline.lifecycle.plan.failure import give_up_members, member_failures
from drumline.lifecycle.plan.situation import Situation
from drumline_trainer.contract import FaultClass, Notice, NoticeAnswer

SAVE_SECONDS: Final = 300.0
"""How long a save is waited for where no deadline is announced, as with a cordon."""


def preempt(situation: Situation) -> JobPlan | None:
    """The next step of a job that is preempted, wholly or in part; None where it is not."""
    disruption = situation.job.status.disruption
    if disruption is None or disruption.kind is not DisruptionKind.PREEMPTION:
        return None
    if disruption.indices is not None:
        return _evict_surplus(situation, disruption)
    saved = _saved_checkpoint(situation, disruption)
    ended = all(pod.end is not None for pod in situation.gang.present)
    if saved is not None or ended or not _can_save(situation, disruption):
        return JobPlan(status=_preempted_status(situation, disruption, saved))
    return _request_save(situation, disruption, leave=True)


def evict_from_nodes(situation: Situation) -> JobPlan | None:
    """The next step for members on nodes with an announced disruption; None where there are none.

    The gang is complete and trains.
    """
    job, gang = situation.job, situation.gang
    if not job.runs_trainer:
        return None
    by_node = {disruption.node: disruption for disruption in situation.observed.node_disruptions}
    affected = {member.index for member in gang.members if member.node in by_node}
    disruption = job.status.disruption
    if not affected:
        if disruption is None:
            return None
        text = f"{disruption.by} is over: no member has to move"
        status = transitions.disruption_withdrawn(job, message=text, now=situation.now)
        return JobPlan(status=status)
    announced = _announced_status(situation, by_node, affected)
    if disruption is None or _has_changed(disruption, announced.disruption):
        return JobPlan(status=announced)
    answer = _answer_to(situation.observed, disruption)
    saved = answer is not None and answer.step is not None
    late = situation.now >= parse_timestamp(disruption.deadline)
    failed = answer is not None and answer.error != ""
    if saved or late or failed or job.spec.checkpoint is None:
        return JobPlan(status=_evicted_status(situation, disruption, answer))
    return _request_save(situation, disruption, leave=False)


def withdraw_notice(job: Job, observed: Observed) -> tuple[Notify, ...]:
    """Withdraws a notice that the agents still hold though its disruption is over."""
    answer, disruption = observed.notice, job.status.disruption
    settled = answer is not None and (answer.step is not None or answer.error != "")
    sent = observed.notified or (answer.id if answer is not None else "")
    if settled and answer is not None and answer.id == sent:
        return ()
    if sent in {"", disruption.id if disruption else "", observed.withdrawn}:
        return ()
    notice = Notice(job_uid=job.uid, id=sent, deadline=0.0, leave=False, withdraw=True)
    return (Notify(notice=notice),)


def _evict_surplus(situation: Situation, disruption: DisruptionStatus) -> JobPlan | None:
    """The next step of an elastic job that gives members up; None where failures come first."""
    job, gang, now = situation.job, situation.gang, situation.now
    if gang.lost or member_failures(situation):
        return None
    answer = _answer_to(situation.observed, disruption)
    saved = answer is not None and answer.step is not None
    if not saved and _can_save(situation, disruption):
        return _request_save(situation, disruption, leave=False)
    status = _with_answer(job, answer, now=now)
    step = answer.step if answer is not None else None
    status = ledger.with_incident(status, _incident(job, disruption, failed_step=step, now=now))
    evicted = set(disruption.indices or ())
    kept = [position for position, member in enumerate(gang.members) if member.index not in evicted]
    resized = transitions.resized(
        replace(job, status=status), kept=kept, added=(), epoch=situation.epoch, now=now
    )
    return JobPlan(status=resized)


def _request_save(situation: Situation, disruption: DisruptionStatus, *, leave: bool) -> JobPlan:
    """Sends the notice, once, and waits for its answer."""
    deadline = parse_timestamp(disruption.deadline)
    answered = _answer_to(situation.observed, disruption) is not None
    if answered or situation.observed.notified == disruption.id:
        return JobPlan(requeue_at=deadline)
    uid = situation.job.uid
    notice = Notice(job_uid=uid, id=disruption.id, deadline=deadline, leave=leave)
    return JobPlan(actions=(Notify(notice=notice),), requeue_at=deadline)


def _answer_to(observed: Observed, disruption: DisruptionStatus) -> NoticeAnswer | None:
    answer = observed.notice
    return answer if answer is not None and answer.id == disruption.id else None


def _with_answer(job: Job, answer: NoticeAnswer | None, *, now: float) -> TrainingJobStatus:
    """The job's status with the checkpoint that the agents acknowledged, if they did."""
    if answer is None or answer.step is None:
        return job.status
    return transitions.with_checkpoint(job, job.status, answer.step, answer.digest, now=now)


def _saved_checkpoint(situation: Situation, disruption: DisruptionStatus) -> tuple[int, str] | None:
    """Step and digest that the agents acknowledged, in their answer or in their final reports."""
    answer = _answer_to(situation.observed, disruption)
    if answer is not None and answer.step is not None:
        return answer.step, answer.digest
    left = [pod for pod in situation.gang.present if _left_on_request(pod)]
    if len(left) < len(situation.gang.members):
        return None
    for pod in left:
        report = final_report(pod.end) if pod.end is not None else None
        if report is not None and report.progress.checkpoint_step is not None:
            return report.progress.checkpoint_step, report.progress.checkpoint_digest
    return None


def _left_on_request(pod: PodFacts) -> bool:
    failure = classify(pod)
    return failure is not None and failure.failure_class is FailureClass.LEFT_ON_REQUEST


def _can_save(situation: Situation, disruption: DisruptionStatus) -> bool:
    """Whether the agents may still report a checkpoint before the deadline."""
    job = situation.job
    answer = _answer_to(situation.observed, disruption)
    failed = any(
        failure.failure_class is not FailureClass.LEFT_ON_REQUEST
        for failure in member_failures(situation)
    )
    return (
        job.runs_trainer
        and job.spec.checkpoint is not None
        and situation.is_running
        and situation.now < parse_timestamp(disruption.deadline)
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
    checkpoint = status.checkpoint
    done = saved[0] if saved is not None else status.step
    incident = _incident(job, disruption, failed_step=done, now=now)
    if checkpoint is not None and done is not None:
        lost = max(0, done - checkpoint.step)
        update = {"restored_step": checkpoint.step, "steps_lost": lost}
        incident = incident.model_copy(update=update)
    job = replace(job, status=ledger.with_incident(status, incident))
    return transitions.preempted(job, saved=saved is not None, now=now)


def _evicted_status(
    situation: Situation, disruption: DisruptionStatus, answer: NoticeAnswer | None
) -> TrainingJobStatus:
    """Saved, or the deadline passed: the affected members are given up, all others stay."""
    job, now = situation.job, situation.now
    step = answer.step if answer is not None else None
    status = _with_answer(job, answer, now=now)
    status = ledger.with_incident(status, _incident(job, disruption, failed_step=step, now=now))
    text = "was not saved in time" if step is None else f"saved step {step}"
    return give_up_members(
        replace(job, status=status),
        situation.gang,
        disruption.indices or (),
        reason=Reason.NODE_DISRUPTED,
        message=f"{disruption.reason}; {text}",
        now=now,
    )


def _has_changed(before: DisruptionStatus, after: DisruptionStatus | None) -> bool:
    """Whether other members are affected, or the deadline or the kind is another.

    A cordon is often only the first sign of what follows.
    """
    if after is None:
        return True
    known = (before.indices, before.deadline, before.kind)
    return known != (after.indices, after.deadline, after.kind)


def _announced_status(
    situation: Situation, by_node: Mapping[str, NodeDisruption], affected: set[int]
) -> TrainingJobStatus:
    """The status that announces the disruption of these members.

    The deadline is the earliest that was ever announced for the affected nodes; the disruption that
    states it names kind and source.

    Example at t=0: node-b is drained (no deadline) and node-c reclaimed at t=120. The disruption is
    SpotReclaim of node-c "and 1 more" with deadline t=120. If the reclaim is withdrawn later, the
    deadline stays t=120: the agents were asked to save by then.
    """
    job, now = situation.job, situation.now
    known = job.status.disruption
    default = now + SAVE_SECONDS if known is None else parse_timestamp(known.deadline)
    disruptions = [
        by_node[member.node] for member in situation.gang.members if member.index in affected
    ]
    deadlines = _deadlines_of(disruptions)
    if known is not None:
        deadlines.append(default)
    first = min(disruptions, key=lambda announced: (announced.deadline or default, announced.node))
    deadline = min(deadlines, default=default)
    left = "" if first.deadline is None else f", {max(0, int(deadline - now))} s left"
    more = f" and {len(disruptions) - 1} more" if len(disruptions) > 1 else ""
    text = f"{first.kind} of node {first.node}{more} ({first.source}{left})"
    return transitions.disrupted(
        job,
        kind=first.kind,
        by=first.source,
        message=text,
        deadline=deadline,
        indices=affected,
        now=now,
    )


def _deadlines_of(disruptions: Sequence[NodeDisruption]) -> list[float]:
    return [announced.deadline for announced in disruptions if announced.deadline is not None]


def _incident(
    job: Job, disruption: DisruptionStatus, *, failed_step: int | None, now: float
) -> IncidentStatus:
    """The incident of an announced fault: it begins, already detected, with the request."""
    requested = min(now, parse_timestamp(disruption.requested_at))
    incident = IncidentStatus(
        generation=(job.status.generation or 0) + 1,
        attempt=0,
        fault_class=FaultClass.PREEMPTION,
        cause=disruption.reason or f"{disruption.kind} by {disruption.by}",
        index=disruption.indices[0] if disruption.indices else None,
        fault_at=precise_timestamp(requested),
        failed_step=failed_step,
    )
    return timeline.with_boundary(incident, timeline.DETECTED, at=requested)
