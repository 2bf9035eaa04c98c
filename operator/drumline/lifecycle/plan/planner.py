"""One job: plan(job, observed, now) -> what to write and what to do next.

Level-triggered: the plan depends on what is, never on what happened, so a crash between any two
writes is mended by planning again. The order below is the order of precedence. Every step that
changes the status returns at once: the controller writes it, durably, and plans again.
"""

from __future__ import annotations

from dataclasses import replace

from drumline.api.conditions import ConditionType, Reason
from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import ledger
from drumline.lifecycle.incidents.gpu_seconds import with_elapsed
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.gang import ObservedGang, observed_gang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.sizes import allowed_sizes
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.plan import elastic as growing
from drumline.lifecycle.plan import eviction as leaving
from drumline.lifecycle.plan import start as starting
from drumline.lifecycle.plan.actions import Action, DeleteJob, DeletePods, JobPlan
from drumline.lifecycle.plan.deadlines import active_deadline
from drumline.lifecycle.plan.deletion import delete_actions
from drumline.lifecycle.plan.eligibility import config_error, is_ours
from drumline.lifecycle.plan.failure import final_progress, handle_failures


def plan_job(job: Job, observed: Observed, *, now: float, epoch: int) -> JobPlan:
    """What this job needs now."""
    if not is_ours(job):
        return JobPlan()
    if job.deleting:
        return JobPlan(actions=tuple(delete_actions(observed.pods)))
    if job.finished:
        return _finished(job, observed, now=now)
    if job.spec.suspend or is_true(job.status, ConditionType.SUSPENDED):
        return _suspension(job, observed, now=now)
    if job.status.assignment is None:  # a running job is not judged by a newer schema
        refused = _configuration(job, now=now)
        return refused or JobPlan(actions=tuple(delete_actions(observed.pods)))
    if job.size not in allowed_sizes(job.spec):
        text = f"resized to {job.spec.nodes} nodes while it held its places"
        return JobPlan(
            status=transitions.requeued(job, reason=Reason.RESIZED, message=text, now=now)
        )
    if job.status.epoch != epoch:
        return JobPlan(status=transitions.with_epoch(job, epoch=epoch))
    return _admitted(job, observed, now=now, epoch=epoch)


def _finished(job: Job, observed: Observed, *, now: float) -> JobPlan:
    """Pods that still run are deleted, ended ones stay for their logs until the TTL."""
    left = tuple(pod for pod in observed.pods if pod.end is None and not pod.terminating)
    actions: tuple[Action, ...] = tuple(delete_actions(left))
    if left and any(pod.end is not None for pod in observed.pods):
        actions = (DeletePods(pods=left),)  # a whole generation would take the ended ones along
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is None or job.status.finished_at is None:
        return JobPlan(actions=actions)
    due = parse_timestamp(job.status.finished_at) + ttl
    if now >= due:
        return JobPlan(actions=(DeleteJob(),))
    return JobPlan(actions=actions, requeue_at=due)


def _suspension(job: Job, observed: Observed, *, now: float) -> JobPlan:
    suspended = is_true(job.status, ConditionType.SUSPENDED)
    if job.spec.suspend and not suspended:
        return JobPlan(status=transitions.suspended(job, now=now))
    if not job.spec.suspend:
        return JobPlan(status=transitions.resumed(job, now=now))
    return JobPlan(actions=tuple(delete_actions(observed.pods)))


def _configuration(job: Job, *, now: float) -> JobPlan | None:
    error = config_error(job)
    marked = is_true(job.status, ConditionType.INVALID_CONFIG)
    if error is None:
        return JobPlan(status=transitions.valid_config(job, now=now)) if marked else None
    if marked and job.status.message == error[:2048]:
        return JobPlan()
    return JobPlan(status=transitions.invalid_config(job, message=error, now=now))


def _admitted(job: Job, observed: Observed, *, now: float, epoch: int) -> JobPlan:
    gang = observed_gang(job, observed)
    if _all_succeeded(gang):
        return JobPlan(status=transitions.succeeded(job, progress=final_progress(gang), now=now))
    counted = ledger.with_agent_incidents(job, observed, now=now)
    if counted != job.status:
        return JobPlan(status=counted)
    decided = (
        leaving.preempt(job, gang, observed, now=now, epoch=epoch)
        or handle_failures(job, gang, observed, now=now, epoch=epoch)
        or _overdue(job, now=now)
    )
    if decided is not None:
        return decided
    if not is_true(job.status, ConditionType.RUNNING):
        return starting.start_gang(job, gang, observed, now=now, epoch=epoch)
    if gang.joining:
        return growing.grow_gang(job, gang, observed, now=now)
    return leaving.evict_from_nodes(job, gang, observed, now=now) or _train_on(
        job, gang, observed, now=now
    )


def _overdue(job: Job, *, now: float) -> JobPlan | None:
    deadline = active_deadline(job)
    if deadline is None or now < deadline:
        return None
    text = f"ran longer than activeDeadlineSeconds={job.spec.active_deadline_seconds}"
    reason = Reason.ACTIVE_DEADLINE_EXCEEDED
    return JobPlan(status=transitions.failed(job, reason=reason, message=text, now=now))


def _train_on(job: Job, gang: ObservedGang, observed: Observed, *, now: float) -> JobPlan:
    """While training goes on only the figures change, as often as the write budget allows."""
    status = job.status if observed.progress is None else _refreshed(job, gang, observed, now=now)
    if status != job.status:
        return JobPlan(status=status)
    actions = (
        *leaving.withdraw_notice(job, observed),
        *delete_actions(gang.orphans, beside=gang.members),
    )
    return JobPlan(actions=actions, requeue_at=active_deadline(job))


def _refreshed(
    job: Job, gang: ObservedGang, observed: Observed, *, now: float
) -> TrainingJobStatus:
    progress = observed.progress
    ready = sum(1 for pod in gang.present if pod.ready or pod.end is not None)
    status = transitions.with_progress(job, job.status, progress, now=now)
    status = status.model_copy(update={"ready": f"{ready}/{job.size}"})
    if status == job.status or progress is None:
        return status
    status = with_elapsed(replace(job, status=status), now=now)
    return ledger.with_step_seen(job, status, progress.step, now=now)


def _all_succeeded(gang: ObservedGang) -> bool:
    pods = [gang.pods.get(member.index) for member in gang.members]
    return all(pod is not None and pod.end is not None and pod.end.succeeded for pod in pods)
