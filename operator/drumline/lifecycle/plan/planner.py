"""Plan one job: plan_job(job, observed, now) -> the status to write and the actions to take.

The plan is level-triggered: it depends on the state, never on past events. So a crash between any
two writes is repaired by planning again. The order of the checks is their precedence. A step that
changes the status returns at once. The controller writes it and plans again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import avoided_nodes, ledger
from drumline.lifecycle.incidents.gpu_seconds import with_elapsed
from drumline.lifecycle.model.conditions import changed, condition, is_true
from drumline.lifecycle.model.gang import ObservedGang, observed_gang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.readiness import is_unobserved
from drumline.lifecycle.model.roles import decides_success
from drumline.lifecycle.model.sizes import may_keep
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline.lifecycle.plan import (
    elastic,
    eviction,
    failure,
    idle,
    node_disruption,
    notices,
    start,
)
from drumline.lifecycle.plan.acceptance import is_ours, refusal_of, verdict_of
from drumline.lifecycle.plan.actions import Action, DeleteJob, DeletePods, JobPlan, delete_actions
from drumline.lifecycle.plan.deadlines import SENTENCE_SECONDS, active_deadline
from drumline.lifecycle.plan.situation import Situation
from drumline_api.conditions import ConditionType, Reason
from drumline_api.jobstatus import TrainingJobStatus

SUCCESSOR_SECONDS: Final = 1.0
"""Time after which the successors of an ended job are checked again."""


def plan_job(job: Job, observed: Observed, *, now: float, epoch: int) -> JobPlan:
    """Return the next write and the next actions for this job.

    Args:
        job: the job with its present status.
        observed: pods, agents and nodes of the job.
        now: Unix time in seconds.
        epoch: epoch of this leader.
    """
    planned = _plan(job, observed, now=now, epoch=epoch)
    again = None if job.finished or job.deleting else avoided_nodes.next_end(job.status)
    if planned.status is None and again is not None:
        times = (planned.requeue_at, again)
        planned = replace(planned, requeue_at=min(at for at in times if at is not None))
    if planned.status is None and is_unobserved(job) and is_ours(job) and not job.deleting:
        return JobPlan(status=job.status)  # the new spec changes nothing: only that is written
    return planned


def _plan(job: Job, observed: Observed, *, now: float, epoch: int) -> JobPlan:
    # Jobs of others, deleted and finished jobs.
    if not is_ours(job):
        return JobPlan()
    if job.deleting:
        return _plan_deleting(job, observed, now=now)
    if job.finished:
        return _plan_finished(job, observed, now=now)
    # Changes that do not depend on what the job does.
    noted = _with_external_changes(job, observed, now=now)
    if noted != job.status:
        return JobPlan(status=noted)
    # Jobs that hold no nodes, or must give them up.
    if job.spec.suspend or is_true(job.status, ConditionType.SUSPENDED):
        return _plan_suspension(job, observed, now=now)
    if job.status.assignment is None:  # a newer schema is not applied to a job that runs
        return _plan_waiting(job, observed, now=now)
    if job.unreadable:
        return _plan_unreadable(job, observed, now=now)
    if is_true(job.status, ConditionType.INVALID_CONFIG):
        return JobPlan(status=transitions.valid_config(job, now=now))
    if not may_keep(job.spec, job.size):
        text = f"resized to {job.spec.nodes} nodes while it held its nodes"
        status = transitions.requeued(job, reason=Reason.RESIZED, message=text, now=now)
        return JobPlan(status=status)
    # Take over jobs of an earlier leader: its late writes must conflict.
    if job.status.epoch != epoch:
        return JobPlan(status=transitions.with_epoch(job, epoch=epoch))
    if isinstance(job.verdict, Schedulable) and not _shows_memory(job, job.verdict):
        return JobPlan(status=transitions.memory_judged(job, job.verdict.shortage, now=now))
    return _plan_admitted(Situation.of(job, observed, now=now, epoch=epoch))


def _with_external_changes(job: Job, observed: Observed, *, now: float) -> TrainingJobStatus:
    """Return the status after what has passed or ended elsewhere, whatever the job does."""
    status = avoided_nodes.without_expired(job.status, now=now)
    if status == job.status and status.assignment is None and observed.predecessors.met:
        return transitions.predecessors_met(job, observed.predecessors)
    return transitions.with_surroundings(
        replace(job, status=status),
        orphaned=observed.orphaned,
        broken_domain=observed.broken_domain,
        now=now,
    )


def _plan_deleting(job: Job, observed: Observed, *, now: float) -> JobPlan:
    """Delete the pods, then give the places back: a finalizer may hold the job for days."""
    pods_are_gone = not observed.expected_pods and not any(pod.holds_node for pod in observed.pods)
    has_places = job.status.assignment is not None or job.status.nominated is not None
    if has_places and not job.finished and pods_are_gone:
        status = transitions.suspended(job, now=now, message="the job is being deleted")
        return JobPlan(status=status)
    return JobPlan(actions=tuple(delete_actions(observed.pods)))


def _plan_finished(job: Job, observed: Observed, *, now: float) -> JobPlan:
    """Delete pods that still run. Ended pods stay for their logs until the TTL.

    A pod whose main container ended counts as running while an injected sidecar holds its GPUs.
    Native sidecars do not count: the kubelet ends them itself, and the logs stay.
    """
    live = tuple(
        pod for pod in observed.pods if pod.holds_node and not pod.terminating and not pod.closing
    )
    actions: tuple[Action, ...] = tuple(delete_actions(live))
    if live and any(pod.end is not None for pod in observed.pods):
        actions = (DeletePods(pods=live),)  # deleting a generation would delete ended pods too
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is None or job.status.finished_at is None:
        return JobPlan(actions=actions)
    due = parse_timestamp(job.status.finished_at) + ttl
    # A successor has not recorded the end yet. Deleting the job now would block it forever.
    if now >= due and observed.is_awaited:
        return JobPlan(actions=actions, requeue_at=now + SUCCESSOR_SECONDS)
    if now >= due:
        return JobPlan(actions=(DeleteJob(),))
    return JobPlan(actions=actions, requeue_at=due)


def _plan_suspension(job: Job, observed: Observed, *, now: float) -> JobPlan:
    suspended = is_true(job.status, ConditionType.SUSPENDED)
    if job.spec.suspend and not suspended:
        return JobPlan(status=transitions.suspended(job, now=now))
    if not (job.spec.suspend or transitions.is_suspended_for_idleness(job)):
        return JobPlan(status=transitions.resumed(job, now=now))
    return JobPlan(actions=tuple(delete_actions(observed.pods)))


def _plan_waiting(job: Job, observed: Observed, *, now: float) -> JobPlan:
    """Write whether the job can be scheduled, and delete pods of an earlier start.

    Pods of a job that cannot be read stay: it may hold places that its status does not show.
    """
    verdict = verdict_of(job)
    if isinstance(verdict, Refusal) and not _shows(job, verdict):
        return JobPlan(status=transitions.invalid_config(job, verdict, now=now))
    if isinstance(verdict, Schedulable) and is_true(job.status, ConditionType.INVALID_CONFIG):
        return JobPlan(status=transitions.valid_config(job, now=now))
    if isinstance(verdict, Schedulable) and not _shows_memory(job, verdict):
        return JobPlan(status=transitions.memory_judged(job, verdict.shortage, now=now))
    return JobPlan(actions=() if job.unreadable else tuple(delete_actions(observed.pods)))


def _plan_unreadable(job: Job, observed: Observed, *, now: float) -> JobPlan:
    """Let a job that holds nodes and cannot be read any more continue as it is.

    Its status reports that, and it ends with its pods. Nothing is started, replaced or released by
    an incomplete spec.
    """
    gang = observed_gang(job, observed)
    if _has_succeeded(job, gang):
        progress = failure.final_progress(gang)
        return JobPlan(status=transitions.succeeded(job, progress=progress, now=now))
    refusal = refusal_of(job)
    if refusal is None or _shows(job, refusal):
        return JobPlan()
    return JobPlan(status=transitions.invalid_config(job, refusal, now=now))


def _shows(job: Job, refusal: Refusal) -> bool:
    shown, text = condition(job.status, ConditionType.INVALID_CONFIG), refusal.message[:2048]
    if shown is None or (shown.status, shown.message) != ("True", text):
        return False
    return job.status.assignment is not None or job.status.message == text


def _shows_memory(job: Job, verdict: Schedulable) -> bool:
    shown = condition(job.status, ConditionType.EXCEEDS_MEMORY)
    exceeds = shown is not None and shown.status == "True"
    if verdict.shortage is None:
        return not exceeds
    return shown is not None and exceeds and shown.message == verdict.shortage.message[:2048]


def _plan_admitted(situation: Situation) -> JobPlan:
    job, gang, now = situation.job, situation.gang, situation.now
    # Success first: after it no failure matters.
    if _has_succeeded(job, gang):
        progress = failure.final_progress(gang)
        return JobPlan(status=transitions.succeeded(job, progress=progress, now=now))
    # Charge the agents' restarts before a decision that depends on the budgets.
    counted = ledger.with_agent_incidents(job, situation.observed, now=now)
    if counted != job.status:
        return JobPlan(status=counted)
    # Reasons to leave or to fail, in the order of precedence.
    decided = (
        idle.leave_terminal(situation)
        or eviction.preempt(situation)
        or idle.leave(situation)
        or idle.ended(situation)
        or failure.handle_failures(situation)
        or _fail_when_overdue(job, now=now)
    )
    if decided is not None:
        return decided
    # Nothing of that: start, grow, leave nodes, or train.
    if not situation.is_running:
        return start.start_gang(situation)
    if gang.joining:
        grows = not situation.is_held
        return elastic.grow_gang(situation) if grows else _continue_training(situation)
    return node_disruption.leave_nodes(situation) or _continue_training(situation)


def _fail_when_overdue(job: Job, *, now: float) -> JobPlan | None:
    deadline = active_deadline(job)
    if deadline is None or now < deadline:
        return None
    text = f"ran longer than activeDeadlineSeconds={job.spec.active_deadline_seconds}"
    reason = Reason.ACTIVE_DEADLINE_EXCEEDED
    return JobPlan(status=transitions.failed(job, reason=reason, message=text, now=now))


def _continue_training(situation: Situation) -> JobPlan:
    """Write figures while the job trains, as often as the write budget allows."""
    job, gang = situation.job, situation.gang
    # Phase 1: figures and the agents' reports.
    status = _with_figures(situation)
    observed = situation.observed
    said = transitions.with_agents_report(
        status, waiting_for=observed.waiting_for, remark=observed.remark
    )
    said = _with_hold_counted(job, said, now=situation.now)
    # Figures that are written anyway take the sentence along: they are due more often than it.
    if observed.refresh_due or status != job.status:
        status = said
    if status != job.status:
        return JobPlan(status=status)
    # Phase 2: idle GPUs.
    judged = idle.judge(situation)
    if judged.status is not None:
        return judged
    # Phase 3: nothing to write. Withdraw old notices, and delete orphans.
    actions = (
        *notices.withdraw_notice(job, situation.observed),
        *delete_actions(gang.orphans, members=gang.members),
    )
    # An agent may change its mind at every request: a write each takes its time.
    again = situation.now + SENTENCE_SECONDS if said != status else None
    times = (
        *(active_deadline(job), node_disruption.due_at(situation)),
        *(again, judged.requeue_at),
    )
    due = [at for at in times if at is not None]
    return JobPlan(actions=actions, requeue_at=min(due, default=None))


def _with_hold_counted(job: Job, status: TrainingJobStatus, *, now: float) -> TrainingJobStatus:
    """Return the next status, with GPU-seconds counted until now if a hold begins or ends in it.

    Agents hold a gang whose program has failed for good (`recovery.holdSeconds`): they keep the
    pods for their user. Until they end, its GPU-seconds are `recovering`, and the gang neither
    grows nor saves (`Situation.is_held`). Suspension, deletion, a deadline, a preemption and the
    end of a node end the hold, because they end the pods.
    """
    if (job.status.reason == Reason.HELD) == (status.reason == Reason.HELD):
        return status
    return changed(status, gpu_seconds=with_elapsed(job, now=now).gpu_seconds)


def _with_figures(situation: Situation) -> TrainingJobStatus:
    """Return the status with the progress that the agents reported, if a refresh is due."""
    job, progress, now = situation.job, situation.observed.progress, situation.now
    if progress is None:
        return job.status
    ready = sum(1 for pod in situation.gang.present if pod.ready or pod.end is not None)
    status = transitions.with_progress(job, job.status, progress, now=now)
    status = status.model_copy(update={"ready": f"{ready}/{job.members}"})
    if status == job.status:
        return status
    status = with_elapsed(situation.with_status(status).job, now=now)
    return ledger.with_step_seen(job, status, progress.step, now=now)


def _has_succeeded(job: Job, gang: ObservedGang) -> bool:
    """Return whether all deciding pods have succeeded: those with ranks, unless roles decide."""
    deciding = [member for member in gang.members if decides_success(job.spec, member.index)]
    pods = [gang.pods.get(member.index) for member in deciding or gang.members]
    return all(pod is not None and pod.end is not None and pod.end.succeeded for pod in pods)
