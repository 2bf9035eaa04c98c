"""Transitions of a job whose GPUs are idle: said, taken back, suspended for it."""

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
    """Its GPUs are idle, and how far that has come. What its agents say otherwise stays shown.

    The condition's time is that of its reason: so long its owner has known it.
    """
    kept = [entry for entry in job.status.conditions or () if entry.type != ConditionType.IDLE]
    status = changed(job.status, conditions=kept)
    status = with_condition(status, job, ConditionType.IDLE, "True", reason, message, now)
    if status.reason not in {Reason.TRAINING, *IDLE_REASONS}:
        return status
    return with_summary(status, status.phase or Phase.RUNNING, reason, message)


def works_again(job: Job, *, now: float) -> TrainingJobStatus:
    """It shows work, or is about to start again."""
    status = cleared(job.status, job, ConditionType.IDLE, Reason.TRAINING, now=now)
    if status.reason not in IDLE_REASONS:
        return status
    return with_summary(status, status.phase or Phase.RUNNING, Reason.TRAINING, "")


def idle_eviction(job: Job, *, message: str, deadline: float, now: float) -> TrainingJobStatus:
    """Its agents are asked to save, as it is to be suspended for its idle GPUs."""
    return disrupted(
        job,
        kind=DisruptionKind.IDLE,
        by=f"queue/{job.spec.queue}",
        message=message,
        deadline=deadline,
        now=now,
    )


def suspended_for_idleness(job: Job, *, saved: bool, now: float) -> TrainingJobStatus:
    """Holds no nodes any more, though its spec does not ask for that.

    Args:
        job: with the disruption and the newest checkpoint.
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
    """The same of a job whose command ended because nobody used its terminal."""
    message = (
        f"its terminal was idle: its command ended at {timestamp(ended_at)} with exit code"
        f" {ExitCode.IDLE.value}. drumline shell {job.name} starts it again: files on claims are"
        " kept, all other files of its pod are lost"
    )
    return suspended(job, reason=Reason.IDLE_GPUS, message=message, now=now)


def is_suspended_for_idleness(job: Job) -> bool:
    """Whether it is, and nobody has changed its spec since, as whoever resumes it does."""
    shown = condition(job.status, ConditionType.SUSPENDED)
    return (
        shown is not None
        and (shown.status, shown.reason) == ("True", Reason.IDLE_GPUS)
        and shown.observed_generation == job.object_generation
    )
