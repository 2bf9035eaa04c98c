"""React to a gang with idle GPUs: warn, notify, save and suspend.

Its agents report for how long no rank has shown work (`contract.Pause`). The queue's `spec.idle`
decides the consequences. A gang is not judged while it starts, recovers, changes its size, saves
for a disruption, waits for its storage or is held. Agents that do not answer prove nothing: the
stage stays, and time alone does not raise it. Once they may have the notice to save and leave, the
suspension is completed, because ranks that have agreed cannot be stopped any more.

Agents may change their report at every answer, so a stage stays for `SENTENCE_SECONDS` before the
next one is written. The condition's own time measures that, so a restart of the operator does not
restart it. A timer writes the delayed stage, even if no agent reports again.
"""

from __future__ import annotations

from typing import Final

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import condition, is_true
from drumline.lifecycle.model.idleness import IdleStage, idle_verdict
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.deadlines import SENTENCE_SECONDS
from drumline.lifecycle.plan.eviction import can_save, saved_checkpoint
from drumline.lifecycle.plan.notices import SAVE_SECONDS, answer_to, request_save
from drumline.lifecycle.plan.situation import Situation
from drumline_api.conditions import Condition, ConditionType, DisruptionKind, Reason
from drumline_api.jobstatus import DisruptionStatus, TrainingJobStatus
from drumline_contract import ExitCode, Pause

_REASONS: Final = {
    IdleStage.WORKS: None,
    IdleStage.WARNED: Reason.NO_STEPS,
    IdleStage.NOTIFIED: Reason.STAYS_IDLE,
}
"""Reasons of the condition Idle by stage, for a gang that continues to train."""


def judge(situation: Situation) -> JobPlan:
    """Return the status to write about a training gang, and the time of the next look.

    An empty plan means nothing to do.
    """
    # Phase 1: the stage, from the pause and the time of the notification.
    pause = _pause(situation)
    if pause is None:
        return JobPlan()
    job, now = situation.job, situation.now
    shown = condition(job.status, ConditionType.IDLE)
    said = shown.reason if shown is not None and shown.status == "True" else None
    notified = _notified_seconds(shown, pause, now=now)
    verdict = idle_verdict(
        pause,
        situation.observed.idle_rules,
        may_suspend=job.spec.when_idle != "Keep",
        notified_seconds=notified,
    )
    # Phase 2: suspension starts at once.
    if verdict.stage is IdleStage.SUSPENDED:
        return JobPlan(status=_eviction(situation, pause))
    # Phase 3: nothing new to write, or its time has not come.
    reason = _REASONS[verdict.stage]
    is_unreported = reason is Reason.STAYS_IDLE and notified is None
    if said == reason and not is_unreported:
        again = None if verdict.again_in is None else now + verdict.again_in
        return JobPlan(requeue_at=again)
    held_until = _held_until(shown, now=now)
    if held_until is not None:
        return JobPlan(requeue_at=held_until)
    # Phase 4: write the stage.
    if reason is None:
        return JobPlan(status=transitions.works_again(job, now=now))
    message = _sentence(situation, pause)
    return JobPlan(status=transitions.idle(job, reason=reason, message=message, now=now))


def leave(situation: Situation) -> JobPlan | None:
    """Return the next step of a job that is suspended for idle GPUs, or None."""
    disruption = situation.job.status.disruption
    if disruption is None or disruption.kind is not DisruptionKind.IDLE:
        return None
    saved = saved_checkpoint(situation, disruption)
    ended = all(pod.end is not None for pod in situation.gang.present)
    if not _may_have_notice(situation, disruption) and not ended and _works(situation):
        text = "it works again"
        status = transitions.disruption_withdrawn(situation.job, message=text, now=situation.now)
        # One write: if it were idle again before a second, it would be evicted again at once.
        job = situation.with_status(status).job
        return JobPlan(status=transitions.works_again(job, now=situation.now))
    # Suspend as soon as waiting cannot gain anything: saved, ended, or not able to save.
    if saved is not None or ended or not can_save(situation, disruption):
        return JobPlan(status=_suspended_status(situation, saved))
    return request_save(situation, disruption, leave=True)


def leave_terminal(situation: Situation) -> JobPlan | None:
    """Suspend a job of one pod whose command ended because its terminal was idle.

    None if it did not. In a job of several pods another terminal may be in use, so there it is a
    failure, as for a job with `whenIdle: Keep`.
    """
    job, present = situation.job, situation.gang.present
    template = job.spec.template
    if template is None or not template.tty or job.members != 1 or job.spec.when_idle == "Keep":
        return None
    ends = [pod.end for pod in present if pod.end is not None]
    if not ends or ends[0].exit_code != ExitCode.IDLE:
        return None
    ended_at = situation.now if ends[0].ended_at is None else ends[0].ended_at
    status = transitions.suspended_with_its_terminal(job, ended_at=ended_at, now=situation.now)
    return JobPlan(status=status)


def ended(situation: Situation) -> JobPlan | None:
    """Clear the condition of a gang that does not train any more. None if it is cleared."""
    if not is_true(situation.job.status, ConditionType.IDLE):
        return None
    if situation.is_running and not situation.gang.joining:
        return None
    return JobPlan(status=transitions.works_again(situation.job, now=situation.now))


def _pause(situation: Situation) -> Pause | None:
    """Return the agents' report, or None if it proves nothing."""
    observed, gang = situation.observed, situation.gang
    if observed.pause is None or situation.job.status.disruption is not None:
        return None
    if gang.lost or gang.missing or observed.silent:
        return None
    if situation.is_held or observed.waiting_for:
        return Pause(seconds=0.0, usual_seconds=0.0)
    return observed.pause


def _held_until(shown: Condition | None, *, now: float) -> float | None:
    """Return the time until which the last stage stays, or None if it may change.

    None also if its time lies in the future, because the clock of an earlier leader was ahead.
    """
    if shown is None:
        return None
    until = parse_timestamp(shown.last_transition_time) + SENTENCE_SECONDS
    return until if now < until <= now + SENTENCE_SECONDS else None


def _notified_seconds(shown: Condition | None, pause: Pause, *, now: float) -> float | None:
    """Return the seconds since the owner was notified of this pause, or None.

    The agents may have worked while the operator was away. Then the condition is about an earlier
    pause. A pause is at least a minute old before it is reported, so an older report does no harm.
    """
    if shown is None or (shown.status, shown.reason) != ("True", Reason.STAYS_IDLE):
        return None
    notified = max(0.0, now - parse_timestamp(shown.last_transition_time))
    return notified if notified <= pause.seconds else None


def _may_have_notice(situation: Situation, disruption: DisruptionStatus) -> bool:
    """Return whether its agents may act on the notice by now.

    Ranks that have agreed to save will leave. They show no pause while they save, so a missing
    pause does not mean that they train again.
    """
    observed = situation.observed
    return observed.notified == disruption.id or answer_to(observed, disruption) is not None


def _works(situation: Situation) -> bool:
    """Return whether its agents report work. A pause that they cannot measure proves nothing."""
    pause = situation.observed.pause
    return pause is not None and pause.usual_seconds > 0 and not pause.is_idle


def _sentence(situation: Situation, pause: Pause) -> str:
    status, now = situation.job.status, situation.now
    step = "" if status.step is None else f" (step {status.step})"
    since = timestamp(now - pause.seconds)
    return f"no work since {since}{step}; its longest usual pause is {pause.usual_seconds:.1f} s"


def _eviction(situation: Situation, pause: Pause) -> TrainingJobStatus:
    text = f"its GPUs were idle: {_sentence(situation, pause)}"
    deadline = situation.now + SAVE_SECONDS
    return transitions.idle_eviction(
        situation.job, message=text, deadline=deadline, now=situation.now
    )


def _suspended_status(situation: Situation, saved: tuple[int, str] | None) -> TrainingJobStatus:
    job, now = situation.job, situation.now
    status = job.status
    if saved is not None:
        status = transitions.with_checkpoint(job, status, *saved, now=now)
    job = situation.with_status(status).job
    return transitions.suspended_for_idleness(job, saved=saved is not None, now=now)
