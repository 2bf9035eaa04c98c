"""Transitions of a job with idle GPUs: reported, withdrawn, suspended."""

from __future__ import annotations

from drumline.lifecycle.model.conditions import (
    changed,
    cleared,
    condition,
    with_condition,
    with_summary,
)
from drumline.lifecycle.model.idleness import IDLE_REASONS
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.transitions.disruption import disrupted
from drumline.lifecycle.transitions.phases import suspended
from drumline_api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import ExitCode


def idle(job: Job, *, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    """Return the status with the condition Idle. Another report of its agents stays visible.

    The condition's time is that of its reason: the owner has known the reason since then.

    Args:
        job: the job with its present status.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    # Remove the old condition first, so that a new reason gets a new time.
    kept = [entry for entry in job.status.conditions or () if entry.type != ConditionType.IDLE]
    status = changed(job.status, conditions=kept)
    status = with_condition(status, job, ConditionType.IDLE, "True", reason, message, now)
    if status.reason not in {Reason.TRAINING, *IDLE_REASONS}:
        return status
    return with_summary(status, status.phase or Phase.RUNNING, reason, message)


def works_again(job: Job, *, now: float) -> TrainingJobStatus:
    """Return the status of a job that works again, or will start again."""
    status = cleared(job.status, job, ConditionType.IDLE, Reason.TRAINING, now=now)
    if status.reason not in IDLE_REASONS:
        return status
    return with_summary(status, status.phase or Phase.RUNNING, Reason.TRAINING, "")


def idle_eviction(job: Job, *, message: str, deadline: float, now: float) -> TrainingJobStatus:
    """Return the status of a job that must save, because its idle GPUs suspend it.

    Args:
        job: the job with its present status.
        message: text for `kubectl get` and the event.
        deadline: Unix time until which the job may save.
        now: Unix time in seconds.
    """
    return disrupted(
        job,
        kind=DisruptionKind.IDLE,
        by=f"queue/{job.spec.queue}",
        message=message,
        deadline=deadline,
        now=now,
    )


def suspended_for_idleness(job: Job, *, saved: bool, now: float) -> TrainingJobStatus:
    """Return the status of a job that was suspended for idle GPUs, not by its spec.

    Args:
        job: the job with the disruption and the newest checkpoint.
        saved: whether its agents acknowledged that checkpoint on request.
        now: seconds since the epoch.
    """
    disruption, checkpoint = job.status.disruption, job.status.checkpoint
    why = disruption.reason if disruption is not None else "its GPUs were idle"
    kept = f"step {checkpoint.step} is saved" if checkpoint else "nothing is saved"
    late = "" if saved else "; its agents did not save on request"
    message = (
        f"{why}; {kept}{late}. To continue it: drumline resume {job.name}, or any change of"
        " its spec"
    )
    return suspended(job, reason=Reason.IDLE_GPUS, message=message, now=now)


def suspended_with_its_terminal(job: Job, *, ended_at: float, now: float) -> TrainingJobStatus:
    """Return the status of a job that was suspended because its terminal was idle.

    Args:
        job: the job with its present status.
        ended_at: Unix time at which the pod ended.
        now: Unix time in seconds.
    """
    message = (
        f"its terminal was idle: its command ended at {timestamp(ended_at)} with exit code"
        f" {ExitCode.IDLE.value}. drumline shell {job.name} starts it again: files on claims are"
        " kept, all other files of its pod are lost"
    )
    return suspended(job, reason=Reason.IDLE_GPUS, message=message, now=now)


def is_suspended_for_idleness(job: Job) -> bool:
    """Return whether it is suspended for idle GPUs and its spec is unchanged since.

    A user resumes the job with any change of its spec.
    """
    # Any change of the spec after the suspension counts as the user's wish to continue.
    shown = condition(job.status, ConditionType.SUSPENDED)
    return (
        shown is not None
        and (shown.status, shown.reason) == ("True", Reason.IDLE_GPUS)
        and shown.observed_generation == job.object_generation
    )
