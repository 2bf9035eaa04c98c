"""Members that failed, vanished or fell silent, and what becomes of their gang.

With the bundled trainer the others keep their pods: a member whose place is lost waits for another
(`status.lost`), one that failed by itself gets a new pod where it was. A gang with a template of
its own knows no partial recovery: it starts again as a whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from drumline.api.conditions import ConditionType, Reason
from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import budgets, failures, ledger
from drumline.lifecycle.incidents import timeline as incidents
from drumline.lifecycle.incidents.failures import (
    RESCHEDULED,
    Failure,
    FailureClass,
    classify,
    final_report,
    root_cause,
)
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed, PodFacts
from drumline.lifecycle.plan.actions import JobPlan
from drumline_trainer.contract import FaultClass, Progress, pod_name

PEER_LOST_PATIENCE_SECONDS: Final = 10.0
"""How long members may blame a peer before that peer has to have shown its own end."""
MAX_REPEATS: Final = 3
"""So many faults of the program in a row without a step between them: restarting does not help."""
MAX_NAMED: Final = 3
"""Of the members lost at once, so many are named in the ledger."""
MAX_SENTENCE_CHARS: Final = 300
_TERMINAL: Final = (FailureClass.CONFIGURATION, FailureClass.CORRUPT_CHECKPOINT)


def handle_failures(
    job: Job, gang: ObservedGang, observed: Observed, *, now: float, epoch: int
) -> JobPlan | None:
    """What failed members ask for; None while all is well."""
    found = member_failures(job, gang, observed)
    if not found:
        return None
    cause = root_cause(found)
    if cause.failure_class in _TERMINAL:
        status = transitions.failed(job, reason=cause.reason, message=cause.message, now=now)
        return JobPlan(status=status)
    if job.runs_trainer and training_is_complete(gang):
        return JobPlan(status=transitions.succeeded(job, progress=final_progress(gang), now=now))
    if gang.joining and all(each.index in gang.joining for each in found):
        return JobPlan(status=transitions.growth_abandoned(job, message=cause.message, now=now))
    if cause.failure_class is FailureClass.PEER_LOST:
        unsaid = [pod for pod in gang.present if pod.end is None]
        patience = _patience(gang)
        if unsaid and now < patience:
            return JobPlan(requeue_at=patience)
        if unsaid:
            return JobPlan(
                status=_lose(job, gang, [_unsaid(pod, cause) for pod in unsaid], now=now)
            )
    away = [each for each in found if each.failure_class in RESCHEDULED]
    if away:
        return JobPlan(status=_lose(job, gang, away, now=now))
    return JobPlan(status=_restart_or_fail(job, gang, observed, cause, now=now, epoch=epoch))


def member_failures(job: Job, gang: ObservedGang, observed: Observed) -> list[Failure]:
    """Every member's failure, by position."""
    running = is_true(job.status, ConditionType.RUNNING)
    told = job.runs_trainer and observed.acknowledged_generation == job.status.generation
    found = [each for pod in gang.present if (each := _failure_of(job, pod, observed)) is not None]
    for member in gang.missing:
        if told or (running and member.index not in gang.joining):
            name = pod_name(job.name, member.index, member.pod_generation)
            found.append(failures.vanished(member, pod=name))
    return found


def training_is_complete(gang: ObservedGang) -> bool:
    """Whether a member saw the last step finished and saved: then nobody is missed any more.

    A rank ends well only after the final checkpoint, which takes all ranks.
    """
    reports = (final_report(pod.end) for pod in gang.present if pod.end and pod.end.succeeded)
    return any(
        report is not None and 0 < report.progress.total_steps <= report.progress.step
        for report in reports
    )


def final_progress(gang: ObservedGang) -> Progress | None:
    """The last figures of the lowest member that ended well."""
    ends = (pod.end for pod in gang.present if pod.end is not None and pod.end.succeeded)
    report = next((report for end in ends if (report := final_report(end)) is not None), None)
    return report.progress if report is not None else None


def _failure_of(job: Job, pod: PodFacts, observed: Observed) -> Failure | None:
    if pod.end is None and pod.node in observed.gone_nodes:
        return failures.on_gone_node(pod)
    if pod.end is None and not pod.terminating and pod.uid in observed.silent:
        return failures.silent(pod)
    failure = classify(pod)
    if (
        failure is not None
        and failure.failure_class is FailureClass.LEFT_ON_REQUEST
        and not job.runs_trainer
    ):
        # the exit codes are the bundled trainer's: nobody asked this one to go
        kind = FailureClass.APPLICATION
        return replace(failure, failure_class=kind, reason=Reason.POD_FAILED)
    return failure


def _unsaid(pod: PodFacts, blamed: Failure) -> Failure:
    """Its peers lost it and it shows no end of its own: its node is gone.

    If they gave up over its code before, they have said so.
    """
    failure = failures.silent(pod)
    text = f"its peers lost {pod.name} on {pod.node}, which does not say how it ended"
    words = f"{text}: {blamed.error}" if blamed.error else text
    return replace(failure, message=words[:1500], reported_class=blamed.reported_class)


def _patience(gang: ObservedGang) -> float:
    ends = [pod.end.ended_at for pod in gang.present if pod.end and pod.end.ended_at]
    return min(ends, default=0.0) + PEER_LOST_PATIENCE_SECONDS


def _lose(job: Job, gang: ObservedGang, away: list[Failure], *, now: float) -> TrainingJobStatus:
    """Gives these members' places up; those that were to leave soon go with them."""
    counted = [each for each in away if each.failure_class is FailureClass.INFRASTRUCTURE]
    cause = root_cause(counted or away)
    text = cause.message + (f"; and {len(away) - 1} more members" if len(away) > 1 else "")
    fault_class, status = cause.charged_to, job.status
    if cause.failure_class is not FailureClass.REFUSED:
        silence = job.spec.recovery.lost_after_seconds
        fault_at = now - silence if cause.reason is Reason.MEMBER_SILENT else now
        named = replace(cause, message=_all_named(counted or away))
        entry = incidents.operator_incident(
            named, job=job, fault_class=fault_class, now=now, fault_at=fault_at
        )
        status = ledger.with_incident(status, entry)
    if cause.failure_class is FailureClass.INFRASTRUCTURE:
        if _exhausted(job, status, fault_class, now=now):
            return _over_the_limit(replace(job, status=status), fault_class, text, now=now)
        status = budgets.with_charge(status, job.spec.recovery, fault_class, at=now)
    return give_up_members(
        replace(job, status=status),
        gang,
        {each.index for each in away},
        reason=cause.reason,
        message=text,
        now=now,
    )


def _all_named(away: list[Failure]) -> str:
    """One sentence about all of them, the cause first; of many, about some."""
    cause = root_cause(away)
    rest = [each for each in away if each is not cause]
    words = [each.message[:MAX_SENTENCE_CHARS] for each in (cause, *rest[: MAX_NAMED - 1])]
    more = len(away) - len(words)
    return "; ".join([*words, f"and {more} more members"] if more else words)


def give_up_members(
    job: Job, gang: ObservedGang, indices: set[int], *, reason: Reason, message: str, now: float
) -> TrainingJobStatus:
    """Members lost, where others remain that wait for them; else all places given back."""
    disruption = job.status.disruption
    if disruption is not None and disruption.indices is not None:
        indices = indices.union(disruption.indices)
    gone = indices | gang.lost
    if job.runs_trainer and any(member.index not in gone for member in gang.members):
        return transitions.members_lost(
            job, indices=indices, reason=reason, message=message, now=now
        )
    return transitions.requeued(job, reason=reason, message=message, now=now)


def _restart_or_fail(
    job: Job, gang: ObservedGang, observed: Observed, cause: Failure, *, now: float, epoch: int
) -> TrainingJobStatus:
    """New pods, where they were, for all members that ended or will; the others keep theirs."""
    job = replace(job, status=ledger.with_agent_incidents(job, observed, now=now, every=True))
    if not _is_charged(job.status, cause):
        job = replace(job, status=_charged_or_failed(job, cause, now=now))
        if job.finished:
            return job.status
    return transitions.restarted(
        job,
        indices=_ending(gang) if job.runs_trainer else [each.index for each in gang.members],
        reason=cause.reason,
        message=f"{cause.message}; {_restarts(job, cause.charged_to, now=now)}",
        epoch=epoch,
        now=now,
    )


def _is_charged(status: TrainingJobStatus, cause: Failure) -> bool:
    """Whether this is but a consequence of the loss that the open incident is about."""
    last = status.last_incident
    return (
        cause.failure_class is FailureClass.PEER_LOST
        and last is not None
        and (last.generation, last.attempt) == ((status.generation or 0) + 1, 0)
        and last.fault_class is cause.charged_to
    )


def _charged_or_failed(job: Job, cause: Failure, *, now: float) -> TrainingJobStatus:
    """The failure in the ledger and in its budget; the job failed where no restart can help."""
    fault_class = cause.charged_to
    entry = incidents.operator_incident(cause, job=job, fault_class=fault_class, now=now)
    before = job.status.last_incident
    job = replace(job, status=ledger.with_incident(job.status, entry))
    last = job.status.last_incident
    if last is not None and last.repeats >= MAX_REPEATS:
        same = before is not None and cause.error != "" and cause.error in before.cause
        what = "the same error" if same else "a fault"
        text = (
            f"{cause.message}; {what} {last.repeats} times in a row at step {last.failed_step}:"
            " starting again does not help"
        )
        return transitions.failed(job, reason=Reason.NO_PROGRESS, message=text, now=now)
    if _exhausted(job, job.status, fault_class, now=now):
        return _over_the_limit(job, fault_class, cause.message, now=now)
    return budgets.with_charge(job.status, job.spec.recovery, fault_class, at=now)


def _restarts(job: Job, fault_class: FaultClass, *, now: float) -> str:
    limit = budgets.limit_of(job.spec.recovery, fault_class)
    used = budgets.used(job.status, job.spec.recovery, fault_class, at=now)
    return f"restart {used}" if limit is None else f"restart {used} of {limit}"


def _ending(gang: ObservedGang) -> list[int]:
    """Members whose pods ended, and those whose pods will.

    Where the agents gave up, all that they knew of end, though their kubelets say so one by one.
    """
    ends = {pod.index: pod.end for pod in gang.present if pod.end is not None}
    reports = (final_report(end) for end in ends.values())
    if not any(report is not None and report.fault_class is not None for report in reports):
        return list(ends)
    return [each.index for each in gang.remaining if each.index not in gang.joining - ends.keys()]


def _exhausted(job: Job, status: TrainingJobStatus, fault_class: FaultClass, *, now: float) -> bool:
    limit = budgets.limit_of(job.spec.recovery, fault_class)
    used = budgets.used(status, job.spec.recovery, fault_class, at=now)
    return limit is not None and used >= limit


def _over_the_limit(
    job: Job, fault_class: FaultClass, sentence: str, *, now: float
) -> TrainingJobStatus:
    limit = budgets.limit_of(job.spec.recovery, fault_class)
    used = budgets.used(job.status, job.spec.recovery, fault_class, at=now)
    text = f"{sentence}; used {used} of {limit} restarts (recovery.{budgets.FIELDS[fault_class]})"
    return transitions.failed(job, reason=Reason.RESTARTS_EXHAUSTED, message=text, now=now)
