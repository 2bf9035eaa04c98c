"""Transitions of a job's status: each is one named function from a status to the next.

Conditions keep their transition time while their status stays the same, as the API conventions ask;
`phase`, `reason` and `message` repeat the condition that matters most, for `kubectl get`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from drumline.api.conditions import Condition, ConditionType, Phase, Reason
from drumline.api.trainingjob import Assignment, CheckpointStatus, TrainingJobStatus
from drumline.lifecycle.job import Job, timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumline_trainer.contract import Progress

Truth = Literal["True", "False", "Unknown"]
MAX_INCIDENT_CHARACTERS = 8192


def condition(status: TrainingJobStatus, kind: ConditionType) -> Condition | None:
    """The condition of this type, if it was ever set."""
    return next((c for c in status.conditions or [] if c.type == kind), None)


def is_true(status: TrainingJobStatus, kind: ConditionType) -> bool:
    """Whether the condition is set and True."""
    found = condition(status, kind)
    return found is not None and found.status == "True"


def set_condition(
    status: TrainingJobStatus,
    kind: ConditionType,
    truth: Truth,
    *,
    reason: str,
    message: str = "",
    now: float,
    observed_generation: int,
) -> TrainingJobStatus:
    """The status with this condition; its transition time moves only when its truth does."""
    before = condition(status, kind)
    since = timestamp(now)
    if before is not None and before.status == truth:
        since = before.last_transition_time
    entry = Condition(
        type=kind.value,
        status=truth,
        reason=reason,
        message=message[:2048],
        last_transition_time=since,
        observed_generation=observed_generation,
    )
    others = [c for c in status.conditions or [] if c.type != kind]
    return _with(status, conditions=sorted([*others, entry], key=lambda c: c.type))


def compress(pool: str, nodes: Sequence[str]) -> Assignment:
    """An assignment with the nodes' common prefix written once."""
    prefix = nodes[0]
    for name in nodes:
        while not name.startswith(prefix):
            prefix = prefix[:-1]
    return Assignment(gpu_pool=pool, prefix=prefix, nodes=[name[len(prefix) :] for name in nodes])


def admitted(
    job: Job, *, pool: str, nodes: Sequence[str], epoch: int, image: str, now: float
) -> TrainingJobStatus:
    """Placed by the scheduler: a new generation with its assignment, durable before any pod."""
    status = _with(
        job.status,
        observed_generation=job.object_generation,
        generation=(job.status.generation or 0) + 1,
        epoch=epoch,
        assignment=compress(pool, nodes),
        image=image,
        queued_at=job.status.queued_at or timestamp(job.created_at),
        admitted_at=timestamp(now),
        generation_at=timestamp(now),
        ready=f"0/{job.spec.nodes}",
        restarts=job.status.restarts or 0,
    )
    for kind in (ConditionType.ADMITTED, ConditionType.PLACED):
        status = _set(status, job, kind, "True", Reason.PLACED, f"in pool {pool}", now)
    if condition(status, ConditionType.RUNNING) is not None:
        status = _set(status, job, ConditionType.RUNNING, "False", Reason.STARTING_PODS, "", now)
    return summarize(status, Phase.STARTING, Reason.STARTING_PODS, "")


def waiting(job: Job, *, reason: str, message: str, now: float) -> TrainingJobStatus:
    """Not placed, and why. Equal to the status it came from when nothing changed."""
    status = _with(
        job.status,
        observed_generation=job.object_generation,
        queued_at=job.status.queued_at or timestamp(job.created_at),
        ready=f"0/{job.spec.nodes}",
    )
    status = _set(status, job, ConditionType.PLACED, "False", reason, message, now)
    return summarize(status, Phase.PENDING, reason, message)


def running(job: Job, *, now: float) -> TrainingJobStatus:
    """All members stand and know each other: training goes on."""
    status = _with(
        job.status,
        started_at=job.status.started_at or timestamp(now),
        ready=f"{job.spec.nodes}/{job.spec.nodes}",
    )
    status = _set(status, job, ConditionType.RUNNING, "True", Reason.TRAINING, "", now)
    status = _no_longer_recovering(status, job, Reason.TRAINING, now=now)
    if job.runs_trainer and job.spec.checkpoint is None:
        text = "no checkpoint.claimName: a restart begins at step 0"
        status = _set(
            status, job, ConditionType.CHECKPOINTED, "False", Reason.NO_DURABLE_STORAGE, text, now
        )
    return summarize(status, Phase.RUNNING, Reason.TRAINING, "")


def restarting(
    job: Job, *, reason: Reason, message: str, epoch: int, charged: bool, now: float
) -> TrainingJobStatus:
    """A new generation on the same nodes."""
    status = _with(
        job.status,
        generation=(job.status.generation or 0) + 1,
        epoch=epoch,
        generation_at=timestamp(now),
        restarts=(job.status.restarts or 0) + (1 if charged else 0),
        ready=f"0/{job.spec.nodes}",
        incident=message[:MAX_INCIDENT_CHARACTERS],
    )
    status = _set(status, job, ConditionType.RUNNING, "False", reason, message, now)
    status = _set(status, job, ConditionType.RECOVERING, "True", reason, message, now)
    return summarize(status, Phase.RECOVERING, reason, message)


def released(job: Job, *, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    """Gives its nodes back and waits to be placed anew, keeping its place in the queue."""
    status = _with(
        job.status,
        assignment=None,
        started_at=None,  # as in batch/v1: waiting does not count against activeDeadlineSeconds
        ready=f"0/{job.spec.nodes}",
        incident=message[:MAX_INCIDENT_CHARACTERS],
    )
    status = _set(status, job, ConditionType.PLACED, "False", reason, message, now)
    for kind in (ConditionType.ADMITTED, ConditionType.RUNNING):
        if condition(status, kind) is not None:
            status = _set(status, job, kind, "False", reason, message, now)
    return summarize(status, Phase.PENDING, reason, message)


def suspended(job: Job, *, now: float) -> TrainingJobStatus:
    """Holds nothing by the user's wish."""
    ready = f"0/{job.spec.nodes}"
    status = _with(job.status, assignment=None, started_at=None, ready=ready)
    reason = Reason.SUSPENDED_BY_USER
    for kind in (ConditionType.ADMITTED, ConditionType.PLACED, ConditionType.RUNNING):
        if condition(status, kind) is not None:
            status = _set(status, job, kind, "False", reason, "", now)
    status = _no_longer_recovering(status, job, reason, now=now)
    status = _set(status, job, ConditionType.SUSPENDED, "True", reason, "", now)
    return summarize(status, Phase.SUSPENDED, reason, "")


def resumed(job: Job, *, now: float) -> TrainingJobStatus:
    """Queued again, behind those who waited meanwhile."""
    status = _with(job.status, queued_at=timestamp(now))
    status = _set(status, job, ConditionType.SUSPENDED, "False", Reason.RESUMED, "", now)
    return summarize(status, Phase.PENDING, Reason.RESUMED, "")


def invalid_config(job: Job, *, message: str, now: float) -> TrainingJobStatus:
    """The trainer's own schema refuses the configuration; nothing is scheduled."""
    status = _with(job.status, observed_generation=job.object_generation)
    reason = Reason.CONFIG_REFUSED
    status = _set(status, job, ConditionType.INVALID_CONFIG, "True", reason, message, now)
    return summarize(status, Phase.PENDING, ConditionType.INVALID_CONFIG, message)


def valid_config(job: Job, *, now: float) -> TrainingJobStatus:
    """The configuration was mended."""
    status = _with(job.status, observed_generation=job.object_generation)
    return _set(status, job, ConditionType.INVALID_CONFIG, "False", Reason.RESUMED, "", now)


def succeeded(job: Job, *, progress: Progress | None, now: float) -> TrainingJobStatus:
    """Every pod ended well."""
    status = with_progress(job, job.status, progress, now=now)
    ready = f"{job.spec.nodes}/{job.spec.nodes}"
    status = _with(status, finished_at=timestamp(now), ready=ready)
    message = ""
    if status.step is not None:
        loss = f", loss {status.loss}" if status.loss else ""
        message = f"finished at step {status.step}{loss}"
    reason = Reason.COMPLETED
    status = _set(status, job, ConditionType.SUCCEEDED, "True", reason, message, now)
    status = _set(status, job, ConditionType.RUNNING, "False", reason, message, now)
    status = _no_longer_recovering(status, job, reason, now=now)
    return summarize(status, Phase.SUCCEEDED, reason, message)


def failed(job: Job, *, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    """Over for good; the message says why and what to do."""
    status = _with(
        job.status,
        finished_at=timestamp(now),
        incident=message[:MAX_INCIDENT_CHARACTERS],
        ready=f"0/{job.spec.nodes}",
    )
    status = _set(status, job, ConditionType.FAILED, "True", reason, message, now)
    if condition(status, ConditionType.RUNNING) is not None:
        status = _set(status, job, ConditionType.RUNNING, "False", reason, message, now)
    status = _no_longer_recovering(status, job, reason, now=now)
    return summarize(status, Phase.FAILED, reason, message)


def with_progress(
    job: Job, status: TrainingJobStatus, progress: Progress | None, *, now: float
) -> TrainingJobStatus:
    """The status with fresher figures; a checkpoint never goes back."""
    if progress is None:
        return status
    speed = progress.tokens_per_second
    status = _with(
        status,
        step=progress.step,
        total_steps=progress.total_steps,
        loss=status.loss if progress.loss is None else _loss_text(progress.loss),
        tokens_per_second=status.tokens_per_second if speed is None else _int64(speed),
    )
    known = status.checkpoint.step if status.checkpoint else -1
    if progress.checkpoint_step is None or progress.checkpoint_step <= known:
        return status
    entry = CheckpointStatus(step=progress.checkpoint_step, digest=progress.checkpoint_digest[:128])
    status = _with(status, checkpoint=entry)
    return _set(
        status,
        job,
        ConditionType.CHECKPOINTED,
        "True",
        Reason.MANIFEST_VERIFIED,
        f"step {entry.step}",
        now,
    )


def _loss_text(loss: float) -> str:
    """Any float fits the field: a diverged loss must not make a status the server refuses."""
    return f"{loss:.4f}" if abs(loss) < 1e12 else f"{loss:.4e}"


def _int64(figure: float) -> int:
    return int(min(max(figure, 0.0), 2.0**53))


def with_epoch(job: Job, *, epoch: int) -> TrainingJobStatus:
    """A new leader takes the job over: older ones lose the right to write it (409)."""
    return _with(job.status, epoch=epoch)


def summarize(
    status: TrainingJobStatus, phase: Phase, reason: str, message: str
) -> TrainingJobStatus:
    """Phase, reason and message as printed by `kubectl get`."""
    return _with(status, phase=phase, reason=str(reason), message=message[:2048])


def _no_longer_recovering(
    status: TrainingJobStatus, job: Job, reason: Reason, *, now: float
) -> TrainingJobStatus:
    if not is_true(status, ConditionType.RECOVERING):
        return status
    return _set(status, job, ConditionType.RECOVERING, "False", reason, "", now)


def _set(  # noqa: PLR0917 - one line per transition above reads as a table
    status: TrainingJobStatus,
    job: Job,
    kind: ConditionType,
    truth: Truth,
    reason: str,
    message: str,
    now: float,
) -> TrainingJobStatus:
    return set_condition(
        status,
        kind,
        truth,
        reason=str(reason),
        message=message,
        now=now,
        observed_generation=job.object_generation,
    )


def _with(status: TrainingJobStatus, **changes: Any) -> TrainingJobStatus:
    return status.model_copy(update=changes)
