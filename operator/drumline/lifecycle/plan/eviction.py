"""Giving way: a notice goes out, a checkpoint is waited for, then places are given up.

A preempted job leaves as a whole, and its agents stop once they have saved; an elastic one may be
asked for some members only, and goes on without them. Members on a node that is about to go are
moved, and the others train on until then. What was asked is durable before it
is asked (`status.disruption`), the answer lands in `status.checkpoint` in the very write that
follows it, and at the deadline the last verified checkpoint counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from drumline.api.conditions import ConditionType, DisruptionKind, Reason
from drumline.api.incidents import IncidentStatus
from drumline.api.jobstatus import DisruptionStatus, TrainingJobStatus
from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import ledger
from drumline.lifecycle.incidents import timeline as incidents
from drumline.lifecycle.incidents.failures import FailureClass, classify, final_report
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import NodeDisruption, Observed, PodFacts
from drumline.lifecycle.model.timestamps import parse_timestamp, precise_timestamp
from drumline.lifecycle.plan.actions import JobPlan, Notify
from drumline.lifecycle.plan.failure import give_up_members, member_failures
from drumline_trainer.contract import FaultClass, Notice, NoticeAnswer

SAVE_SECONDS: Final = 300.0
"""How long a save is waited for where nobody sets a deadline, as with a cordon."""


def preempt(
    job: Job, gang: ObservedGang, observed: Observed, *, now: float, epoch: int
) -> JobPlan | None:
    """The next step of a job that gives places to another; None where it does not."""
    disruption = job.status.disruption
    if disruption is None or disruption.kind is not DisruptionKind.PREEMPTION:
        return None
    if disruption.indices is not None:
        return _surplus(job, gang, observed, disruption, now=now, epoch=epoch)
    saved = _saved(gang, observed, disruption)
    ended = all(pod.end is not None for pod in gang.present)
    if saved is not None or ended or not _can_save(job, gang, observed, disruption, now=now):
        return JobPlan(status=_preempted(job, saved, now=now))
    return _ask(job, observed, disruption, leave=True)


def _surplus(
    job: Job,
    gang: ObservedGang,
    observed: Observed,
    disruption: DisruptionStatus,
    *,
    now: float,
    epoch: int,
) -> JobPlan | None:
    """The next step of an elastic job that gives some members up; None where others fail first."""
    if gang.lost or member_failures(job, gang, observed):
        return None
    answer = _answer(observed, disruption)
    saved = answer is not None and answer.step is not None
    if not saved and _can_save(job, gang, observed, disruption, now=now):
        return _ask(job, observed, disruption, leave=False)
    status = job.status
    if answer is not None and answer.step is not None:
        status = transitions.with_checkpoint(job, status, answer.step, answer.digest, now=now)
    step = answer.step if answer is not None else None
    status = ledger.with_incident(status, _entry(job, disruption, failed_step=step, now=now))
    going = set(disruption.indices or ())
    kept = [at for at, member in enumerate(gang.members) if member.index not in going]
    job = replace(job, status=status)
    return JobPlan(status=transitions.resized(job, kept=kept, added=(), epoch=epoch, now=now))


def evict_from_nodes(
    job: Job, gang: ObservedGang, observed: Observed, *, now: float
) -> JobPlan | None:
    """The next step for members on nodes that are about to go; None where there are none.

    The gang is whole and trains.
    """
    if not job.runs_trainer:
        return None
    threats = {threat.node: threat for threat in observed.node_disruptions}
    doomed = {member.index for member in gang.members if member.node in threats}
    disruption = job.status.disruption
    if not doomed:
        if disruption is None:
            return None
        text = f"{disruption.by} is over: nobody has to move"
        return JobPlan(status=transitions.disruption_withdrawn(job, message=text, now=now))
    announced = _disrupted(job, gang, threats, doomed, now=now)
    if _is_news(disruption, announced.disruption):
        return JobPlan(status=announced)
    assert disruption is not None  # noqa: S101 - else it were news
    answer = _answer(observed, disruption)
    saved = answer is not None and answer.step is not None
    late = now >= parse_timestamp(disruption.deadline)
    failed = answer is not None and answer.error != ""
    if saved or late or failed or job.spec.checkpoint is None:
        return JobPlan(status=_moving(job, gang, disruption, answer, now=now))
    return _ask(job, observed, disruption, leave=False)


def withdraw_notice(job: Job, observed: Observed) -> tuple[Notify, ...]:
    """Takes back a notice that is out though nobody wants it any more."""
    answer, disruption = observed.notice, job.status.disruption
    settled = answer is not None and (answer.step is not None or answer.error != "")
    out = observed.notified or (answer.id if answer is not None else "")
    if settled and answer is not None and answer.id == out:
        return ()
    if out in {"", disruption.id if disruption else "", observed.withdrawn}:
        return ()
    notice = Notice(job_uid=job.uid, id=out, deadline=0.0, leave=False, withdraw=True)
    return (Notify(notice=notice),)


def _ask(job: Job, observed: Observed, disruption: DisruptionStatus, *, leave: bool) -> JobPlan:
    deadline = parse_timestamp(disruption.deadline)
    answer = observed.notice
    known = observed.notified == disruption.id or (
        answer is not None and answer.id == disruption.id
    )
    if known:
        return JobPlan(requeue_at=deadline)
    notice = Notice(job_uid=job.uid, id=disruption.id, deadline=deadline, leave=leave)
    return JobPlan(actions=(Notify(notice=notice),), requeue_at=deadline)


def _answer(observed: Observed, disruption: DisruptionStatus) -> NoticeAnswer | None:
    answer = observed.notice
    return answer if answer is not None and answer.id == disruption.id else None


def _saved(
    gang: ObservedGang, observed: Observed, disruption: DisruptionStatus
) -> tuple[int, str] | None:
    """Step and digest that the agents acknowledged, alive or in their last words."""
    answer = _answer(observed, disruption)
    if answer is not None and answer.step is not None:
        return answer.step, answer.digest
    left = [pod for pod in gang.present if _has_left(pod)]
    if len(left) < len(gang.members):
        return None
    for pod in left:
        report = final_report(pod.end) if pod.end is not None else None
        if report is not None and report.progress.checkpoint_step is not None:
            return report.progress.checkpoint_step, report.progress.checkpoint_digest
    return None


def _has_left(pod: PodFacts) -> bool:
    failure = classify(pod)
    return failure is not None and failure.failure_class is FailureClass.LEFT_ON_REQUEST


def _can_save(
    job: Job, gang: ObservedGang, observed: Observed, disruption: DisruptionStatus, *, now: float
) -> bool:
    """Whether waiting for the agents may still bring a checkpoint."""
    answer = _answer(observed, disruption)
    broken = [
        failure
        for failure in member_failures(job, gang, observed)
        if failure.failure_class is not FailureClass.LEFT_ON_REQUEST
    ]
    return (
        job.runs_trainer
        and job.spec.checkpoint is not None
        and is_true(job.status, ConditionType.RUNNING)
        and now < parse_timestamp(disruption.deadline)
        and not broken
        and not (answer is not None and answer.error)
    )


def _preempted(job: Job, saved: tuple[int, str] | None, *, now: float) -> TrainingJobStatus:
    disruption = job.status.disruption
    assert disruption is not None  # noqa: S101 - the caller looked
    status = job.status
    if saved is not None:
        status = transitions.with_checkpoint(job, status, saved[0], saved[1], now=now)
    checkpoint = status.checkpoint
    done = saved[0] if saved is not None else status.step
    entry = _entry(job, disruption, failed_step=done, now=now)
    if checkpoint is not None and done is not None:
        lost = max(0, done - checkpoint.step)
        entry = entry.model_copy(update={"restored_step": checkpoint.step, "steps_lost": lost})
    status = ledger.with_incident(status, entry)
    return transitions.preempted(replace(job, status=status), saved=saved is not None, now=now)


def _moving(
    job: Job,
    gang: ObservedGang,
    disruption: DisruptionStatus,
    answer: NoticeAnswer | None,
    *,
    now: float,
) -> TrainingJobStatus:
    """Saved, or out of time: the members there are given up, with all others in place."""
    status, text = job.status, "was not saved in time"
    step = answer.step if answer is not None else None
    if answer is not None and step is not None:
        status = transitions.with_checkpoint(job, status, step, answer.digest, now=now)
        text = f"saved step {step}"
    status = ledger.with_incident(status, _entry(job, disruption, failed_step=step, now=now))
    indices = set(disruption.indices or ())
    message = f"{disruption.reason}; {text}"
    reason = Reason.NODE_DISRUPTED
    job = replace(job, status=status)
    return give_up_members(job, gang, indices, reason=reason, message=message, now=now)


def _is_news(before: DisruptionStatus | None, after: DisruptionStatus | None) -> bool:
    """Whether other members go, or sooner, or for another reason.

    A cordon is often but the first sign of what comes.
    """
    if before is None or after is None:
        return True
    known = (before.indices, before.deadline, before.kind)
    return known != (after.indices, after.deadline, after.kind)


def _disrupted(
    job: Job,
    gang: ObservedGang,
    threats: dict[str, NodeDisruption],
    doomed: set[int],
    *,
    now: float,
) -> TrainingJobStatus:
    """The members on all threatened nodes, by the earliest deadline there ever was of these."""
    known = job.status.disruption
    until = now + SAVE_SECONDS if known is None else parse_timestamp(known.deadline)
    theirs = [
        threats[member.node]
        for member in gang.members
        if member.index in doomed and member.node in threats
    ]
    deadlines = [threat.deadline for threat in theirs if threat.deadline is not None]
    if known is not None:
        deadlines.append(until)
    chief = min(theirs, key=lambda threat: (threat.deadline or until, threat.node))
    deadline = min(deadlines, default=until)
    left = "" if chief.deadline is None else f", {max(0, int(deadline - now))} s left"
    more = f" and {len(theirs) - 1} more" if len(theirs) > 1 else ""
    text = f"{chief.kind} of node {chief.node}{more} ({chief.source}{left})"
    return transitions.disrupted(
        job,
        kind=chief.kind,
        by=chief.source,
        message=text,
        deadline=deadline,
        indices=doomed,
        now=now,
    )


def _entry(
    job: Job, disruption: DisruptionStatus, *, failed_step: int | None, now: float
) -> IncidentStatus:
    """The announced fault: it begins with the request, and nobody had to find it."""
    asked = min(now, parse_timestamp(disruption.requested_at))
    entry = IncidentStatus(
        generation=(job.status.generation or 0) + 1,
        attempt=0,
        fault_class=FaultClass.PREEMPTION,
        cause=disruption.reason or f"{disruption.kind} by {disruption.by}",
        index=disruption.indices[0] if disruption.indices else None,
        fault_at=precise_timestamp(asked),
        failed_step=failed_step,
    )
    return incidents.with_boundary(entry, incidents.DETECTED, at=asked)
