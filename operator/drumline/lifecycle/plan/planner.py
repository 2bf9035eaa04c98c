"""One job: plan(job, observed, now) -> what to write and what to do next.

Level-triggered: the plan depends on what is, never on what happened, so a crash between any two
writes is mended by planning again. The order below is the order of precedence. Every step that
changes the status returns at once: the controller writes it, durably, and plans again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drumline.api.conditions import ConditionType, Reason
from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import ledger
from drumline.lifecycle.incidents.gpu_seconds import accrued
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.gang import Gang, gang_of
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.sizes import legal_sizes
from drumline.lifecycle.model.timestamps import seconds
from drumline.lifecycle.plan import elastic as growing
from drumline.lifecycle.plan import eviction as leaving
from drumline.lifecycle.plan import start as starting
from drumline.lifecycle.plan.actions import Action, DeleteJob, DeleteStrays, Plan
from drumline.lifecycle.plan.deadlines import active_deadline
from drumline.lifecycle.plan.deletion import deletion_of
from drumline.lifecycle.plan.eligibility import config_error, is_ours
from drumline.lifecycle.plan.failure import final_progress, setback

if TYPE_CHECKING:
    from drumline.api.jobstatus import TrainingJobStatus


def plan(job: Job, observed: Observed, *, now: float, epoch: int) -> Plan:
    """What this job needs now."""
    if not is_ours(job):
        return Plan()
    if job.deleting:
        return Plan(actions=tuple(deletion_of(observed.pods)))
    if job.finished:
        return _finished(job, observed, now=now)
    if job.spec.suspend or is_true(job.status, ConditionType.SUSPENDED):
        return _suspension(job, observed, now=now)
    if job.status.assignment is None:  # a running job is not judged by a newer schema
        refused = _configuration(job, now=now)
        return refused or Plan(actions=tuple(deletion_of(observed.pods)))
    if job.size not in legal_sizes(job.spec):
        text = f"resized to {job.spec.nodes} nodes while it held its places"
        return Plan(status=transitions.released(job, reason=Reason.RESIZED, message=text, now=now))
    if job.status.epoch != epoch:
        return Plan(status=transitions.with_epoch(job, epoch=epoch))
    return _admitted(job, observed, now=now, epoch=epoch)


def _finished(job: Job, observed: Observed, *, now: float) -> Plan:
    """Pods that still run are deleted, ended ones stay for their logs until the TTL."""
    left = tuple(pod for pod in observed.pods if pod.end is None and not pod.terminating)
    actions: tuple[Action, ...] = tuple(deletion_of(left))
    if left and any(pod.end is not None for pod in observed.pods):
        actions = (DeleteStrays(pods=left),)  # a whole generation would take the ended ones along
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is None or job.status.finished_at is None:
        return Plan(actions=actions)
    due = seconds(job.status.finished_at) + ttl
    if now >= due:
        return Plan(actions=(DeleteJob(),))
    return Plan(actions=actions, requeue_at=due)


def _suspension(job: Job, observed: Observed, *, now: float) -> Plan:
    suspended = is_true(job.status, ConditionType.SUSPENDED)
    if job.spec.suspend and not suspended:
        return Plan(status=transitions.suspended(job, now=now))
    if not job.spec.suspend:
        return Plan(status=transitions.resumed(job, now=now))
    return Plan(actions=tuple(deletion_of(observed.pods)))


def _configuration(job: Job, *, now: float) -> Plan | None:
    error = config_error(job)
    marked = is_true(job.status, ConditionType.INVALID_CONFIG)
    if error is None:
        return Plan(status=transitions.valid_config(job, now=now)) if marked else None
    if marked and job.status.message == error[:2048]:
        return Plan()
    return Plan(status=transitions.invalid_config(job, message=error, now=now))


def _admitted(job: Job, observed: Observed, *, now: float, epoch: int) -> Plan:
    gang = gang_of(job, observed)
    if _all_succeeded(gang):
        return Plan(status=transitions.succeeded(job, progress=final_progress(gang), now=now))
    counted = ledger.folded(job, observed, now=now)
    if counted != job.status:
        return Plan(status=counted)
    decided = (
        leaving.preemption(job, gang, observed, now=now, epoch=epoch)
        or setback(job, gang, observed, now=now, epoch=epoch)
        or _overdue(job, now=now)
    )
    if decided is not None:
        return decided
    if not is_true(job.status, ConditionType.RUNNING):
        return starting.start(job, gang, observed, now=now, epoch=epoch)
    if gang.joining:
        return growing.grow(job, gang, observed, now=now)
    return leaving.nodes(job, gang, observed, now=now) or _train_on(job, gang, observed, now=now)


def _overdue(job: Job, *, now: float) -> Plan | None:
    deadline = active_deadline(job)
    if deadline is None or now < deadline:
        return None
    text = f"ran longer than activeDeadlineSeconds={job.spec.active_deadline_seconds}"
    reason = Reason.ACTIVE_DEADLINE_EXCEEDED
    return Plan(status=transitions.failed(job, reason=reason, message=text, now=now))


def _train_on(job: Job, gang: Gang, observed: Observed, *, now: float) -> Plan:
    """While training goes on only the figures change, as often as the write budget allows."""
    status = job.status if observed.progress is None else _refreshed(job, gang, observed, now=now)
    if status != job.status:
        return Plan(status=status)
    actions = (
        *leaving.withdrawal(job, observed),
        *deletion_of(gang.strays, beside=gang.members),
    )
    return Plan(actions=actions, requeue_at=active_deadline(job))


def _refreshed(job: Job, gang: Gang, observed: Observed, *, now: float) -> TrainingJobStatus:
    progress = observed.progress
    ready = sum(1 for pod in gang.present if pod.ready or pod.end is not None)
    status = transitions.with_progress(job, job.status, progress, now=now)
    status = status.model_copy(update={"ready": f"{ready}/{job.size}"})
    if status == job.status or progress is None:
        return status
    status = accrued(replace(job, status=status), now=now)
    return ledger.stepped(job, status, progress.step, now=now)


def _all_succeeded(gang: Gang) -> bool:
    pods = [gang.pods.get(member.index) for member in gang.members]
    return all(pod is not None and pod.end is not None and pod.end.succeeded for pod in pods)
