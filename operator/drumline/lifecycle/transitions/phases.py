"""Transitions between the phases of a job: waiting, running, suspended, succeeded, failed.

Transitions that change the members are in `membership`, those of disruptions in `disruption`.
"""

from __future__ import annotations

from drumline.lifecycle.incidents.gpu_seconds import with_elapsed
from drumline.lifecycle.incidents.ledger import with_boundary_passed
from drumline.lifecycle.incidents.timeline import FIRST_STEP, REPLACED
from drumline.lifecycle.model.chains import Standing
from drumline.lifecycle.model.conditions import (
    changed,
    cleared,
    condition,
    with_condition,
    with_summary,
)
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.timestamps import order_timestamp, parse_timestamp, timestamp
from drumline.lifecycle.model.verdict import MemoryShortage, Refusal
from drumline_api.after import AfterSpec
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_api.jobstatus import CheckpointStatus, TrainingJobStatus
from drumline_contract import Progress, Remark, RemarkKind, rank_compute, step_series

MAX_INCIDENT_CHARACTERS = 8192
MOST_SECONDS_LEFT = 10 * 366 * 86_400.0
"""Longest remaining time that counts. A longer one is a step without end, or a false report."""
END_SECONDS = 60.0
END_SHARE = 0.05
"""An expected end that moves by less than this share of the remaining time is kept.

The same holds for less than END_SECONDS.
"""
_REMARKED = {
    RemarkKind.HELD: Reason.HELD,
    RemarkKind.RANKS_ENDED: Reason.RANKS_ENDED,
    RemarkKind.LOSS_NOT_FINITE: Reason.LOSS_NOT_FINITE,
    RemarkKind.PROGRESS_UNREADABLE: Reason.PROGRESS_UNREADABLE,
}
"""Remarks of agents and their reasons."""
_OF_NODES = (
    *(ConditionType.RECOVERING, ConditionType.DISRUPTED, ConditionType.IDLE),
    *(ConditionType.ORPHANED, ConditionType.DOMAIN_BROKEN),
)
"""Conditions that are only true of a job with nodes."""
_SURROUNDINGS = frozenset((Reason.QUEUE_DELETED, Reason.POOL_DELETED, Reason.LABELS_MOVED))
"""Reasons about what was deleted or relabelled under a running job."""


def waiting(job: Job, *, reason: str, message: str, now: float) -> TrainingJobStatus:
    """Return the status of a job that waits with a reason. Equal if nothing changed.

    It has no places, or lost members.

    Args:
        job: the job with its present status.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    held = job.status.assignment is not None
    status = changed(
        job.status,
        observed_generation=job.object_generation,
        queued_at=job.status.queued_at or order_timestamp(job.queued_at),
        ready=job.status.ready if held else f"0/{job.wanted}",
    )
    status = with_condition(status, job, ConditionType.PLACED, "False", reason, message, now)
    return with_summary(status, Phase.RECOVERING if held else Phase.PENDING, reason, message)


def predecessors_met(job: Job, predecessors: Standing) -> TrainingJobStatus:
    """Return the status after jobs of spec.after ended.

    Its place in the queue counts from the end of the last of them.
    """
    eligible_at = job.queued_after(predecessors.ended_at)
    return changed(
        job.status,
        after=[*_still_required(job), *predecessors.met],
        queued_at=order_timestamp(eligible_at),
    )


def _still_required(job: Job) -> list[AfterSpec]:
    """Return the predecessors that were met before and are still in the spec."""
    return [after for after in job.status.after or () if after in (job.spec.after or ())]


def with_expected_start(
    status: TrainingJobStatus, *, start: float | None, by: float | None
) -> TrainingJobStatus:
    """Return the status with the forecast start: median (`start`) and 90th percentile (`by`).

    Args:
        status: the job's present status.
        start: Unix time before which half of such jobs start.
        by: Unix time before which nine in ten start.
    """
    return changed(
        status,
        expected_start=None if start is None else timestamp(start),
        expected_start_by=None if by is None else timestamp(by),
    )


def running(job: Job, *, now: float, image: str | None = None) -> TrainingJobStatus:
    """Return the status of a job whose members all run and have the generation record.

    Args:
        job: the job. It has an assignment.
        now: seconds since the epoch.
        image: the job's image with the digest that its pods run. None: unchanged.
    """
    # Phase 1: close the boundary of an open incident.
    status = with_boundary_passed(with_elapsed(job, now=now), REPLACED, now=now)
    all_new = all(member.pod_generation == status.generation for member in members_of(status))
    if job.launch is not None and all_new and status.step is None:
        # No step will show the end of the recovery, and agents of new pods do not know of it.
        status = with_boundary_passed(status, FIRST_STEP, now=now)
    # Phase 2: the members train from now on, so the failed starts of this spec are over.
    assignment = status.assignment
    status = changed(
        status,
        assignment=assignment and assignment.model_copy(update={"joining": None}),
        image=image or status.image,
        failed_starts=None,
        started_at=status.started_at or timestamp(now),
        ready=f"{job.members}/{job.members}",
        ranks=job.size * job.spec.gpus_per_node if job.is_supervised else None,
    )
    # Phase 3: conditions.
    status = with_condition(status, job, ConditionType.RUNNING, "True", Reason.TRAINING, "", now)
    status = cleared(status, job, ConditionType.RECOVERING, Reason.TRAINING, now=now)
    if job.runs_trainer and job.spec.checkpoint is None:
        text = "no checkpoint.claimName or bucket: a restart begins at step 0"
        status = with_condition(
            status, job, ConditionType.CHECKPOINTED, "False", Reason.NO_DURABLE_STORAGE, text, now
        )
    return with_summary(status, Phase.RUNNING, Reason.TRAINING, "")


def requeued(job: Job, *, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    """Return the status of a job that gave its nodes back. It keeps its `queuedAt`.

    Args:
        job: the job with its present status.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    status = changed(
        with_elapsed(job, now=now),
        assignment=None,
        disruption=None,
        expected_end=None,
        started_at=None,  # as in batch/v1: waiting does not count against activeDeadlineSeconds
        ready=f"0/{job.wanted}",
        incident=message[:MAX_INCIDENT_CHARACTERS],
    )
    status = with_condition(status, job, ConditionType.PLACED, "False", reason, message, now)
    for kind in (ConditionType.ADMITTED, ConditionType.RUNNING):
        if condition(status, kind) is not None:
            status = with_condition(status, job, kind, "False", reason, message, now)
    for kind in (ConditionType.DISRUPTED, ConditionType.IDLE):
        status = cleared(status, job, kind, reason, now=now)
    return with_summary(status, Phase.PENDING, reason, message)


def suspended(
    job: Job, *, now: float, reason: Reason = Reason.SUSPENDED_BY_USER, message: str = ""
) -> TrainingJobStatus:
    """Return the status of a job without nodes that is not queued, for this reason.

    Args:
        job: the job with its present status.
        now: Unix time in seconds.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
    """
    status = changed(
        with_elapsed(job, now=now),
        assignment=None,
        nominated=None,
        disruption=None,
        expected_end=None,
        failed_starts=None,  # the next start is after a change, perhaps
        started_at=None,
        ready=f"0/{job.wanted}",
    )
    status = with_expected_start(status, start=None, by=None)
    for kind in (ConditionType.ADMITTED, ConditionType.PLACED, ConditionType.RUNNING):
        if condition(status, kind) is not None:
            status = with_condition(status, job, kind, "False", reason, "", now)
    status = _without_nodes(status, job, reason, now=now)
    status = with_condition(status, job, ConditionType.SUSPENDED, "True", reason, message, now)
    return with_summary(status, Phase.SUSPENDED, reason, message)


def resumed(job: Job, *, now: float) -> TrainingJobStatus:
    """Return the status of a job that is queued again, behind the jobs that already wait."""
    status = changed(job.status, queued_at=order_timestamp(now))
    status = with_condition(status, job, ConditionType.SUSPENDED, "False", Reason.RESUMED, "", now)
    return with_summary(status, Phase.PENDING, Reason.RESUMED, "")


def invalid_config(job: Job, refusal: Refusal, *, now: float) -> TrainingJobStatus:
    """Return the status of a job that cannot be scheduled. With nodes it keeps its phase.

    Args:
        job: the job with its present status.
        refusal: the field, and what is wrong with it.
        now: Unix time in seconds.
    """
    reason, message = refusal.reason, refusal.message
    status = changed(job.status, observed_generation=job.object_generation)
    status = with_condition(status, job, ConditionType.INVALID_CONFIG, "True", reason, message, now)
    if job.status.assignment is not None:
        return status
    return with_summary(status, Phase.PENDING, ConditionType.INVALID_CONFIG, message)


def valid_config(job: Job, *, now: float) -> TrainingJobStatus:
    """Return the status of a job whose configuration is valid again."""
    status = changed(job.status, observed_generation=job.object_generation)
    return with_condition(
        status, job, ConditionType.INVALID_CONFIG, "False", Reason.RESUMED, "", now
    )


def memory_judged(job: Job, shortage: MemoryShortage | None, *, now: float) -> TrainingJobStatus:
    """Return the status with the planner's verdict on the memory of its GPUs.

    Args:
        job: the job with its present status.
        shortage: missing memory. None: the model fits.
        now: Unix time in seconds.
    """
    status = changed(job.status, observed_generation=job.object_generation)
    kind = ConditionType.EXCEEDS_MEMORY
    if shortage is None:
        return cleared(status, job, kind, Reason.MEMORY_SUFFICES, now=now)
    reason, text = Reason.MEMORY_EXCEEDED, shortage.message
    return with_condition(status, job, kind, "True", reason, text, now)


def with_surroundings(
    job: Job, *, orphaned: tuple[Reason, str] | None, broken_domain: str, now: float
) -> TrainingJobStatus:
    """Return the status with what was deleted or relabelled under a job.

    Args:
        job: the job.
        orphaned: reason and sentence about its queue or pool, None if both exist.
        broken_domain: sentence about its required domain, empty if it is whole.
        now: seconds since the epoch.
    """
    status, kind = job.status, ConditionType.ORPHANED
    if orphaned is None:
        status = cleared(status, job, kind, Reason.RESTORED, now=now)
    else:
        status = with_condition(status, job, kind, "True", *orphaned, now)
    moved, kind = Reason.LABELS_MOVED, ConditionType.DOMAIN_BROKEN
    if broken_domain:
        status = with_condition(status, job, kind, "True", moved, broken_domain, now)
    else:
        status = cleared(status, job, kind, Reason.RESTORED, now=now)
    # The plain summary of training gives way, so that lists show it too. Other reasons stay.
    said = orphaned or ((moved, broken_domain) if broken_domain else (Reason.TRAINING, ""))
    shown = status.reason
    if shown in _SURROUNDINGS or (shown == Reason.TRAINING and said[0] in _SURROUNDINGS):
        return with_summary(status, Phase.RUNNING, *said)
    return status


def succeeded(job: Job, *, progress: Progress | None, now: float) -> TrainingJobStatus:
    """Return the status of a job whose pods all succeeded.

    Args:
        job: the job with its present status.
        progress: figures that the agents reported last.
        now: Unix time in seconds.
    """
    status = with_progress(job, with_elapsed(job, now=now), progress, now=now)
    ready = f"{job.members}/{job.members}"
    status = changed(
        status,
        finished_at=timestamp(now),
        ready=ready,
        disruption=None,
        nominated=None,
        expected_end=None,
    )
    message = ""
    if status.step is not None:
        loss = f", loss {status.loss}" if status.loss else ""
        message = f"finished at step {status.step}{loss}"
    reason = Reason.COMPLETED
    status = with_condition(status, job, ConditionType.SUCCEEDED, "True", reason, message, now)
    status = with_condition(status, job, ConditionType.RUNNING, "False", reason, message, now)
    status = _without_nodes(status, job, reason, now=now)
    return with_summary(status, Phase.SUCCEEDED, reason, message)


def failed(job: Job, *, reason: Reason, message: str, now: float) -> TrainingJobStatus:
    """Return the status of a job that failed for good. The message has the reason and a remedy.

    Args:
        job: the job with its present status.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    status = changed(
        with_elapsed(job, now=now),
        finished_at=timestamp(now),
        disruption=None,
        nominated=None,
        expected_end=None,
        incident=message[:MAX_INCIDENT_CHARACTERS],
        ready=f"0/{job.members}",
    )
    status = with_expected_start(status, start=None, by=None)
    status = with_condition(status, job, ConditionType.FAILED, "True", reason, message, now)
    if condition(status, ConditionType.RUNNING) is not None:
        status = with_condition(status, job, ConditionType.RUNNING, "False", reason, message, now)
    status = _without_nodes(status, job, reason, now=now)
    return with_summary(status, Phase.FAILED, reason, message)


def with_progress(
    job: Job, status: TrainingJobStatus, progress: Progress | None, *, now: float
) -> TrainingJobStatus:
    """Return the status with newer figures. The checkpoint never goes back.

    Args:
        job: the job with its present status.
        status: the status to change.
        progress: figures that the agents reported.
        now: Unix time in seconds.
    """
    if progress is None:
        return status
    speed, predicted = progress.tokens_per_second, progress.predicted_tokens_per_second
    # A program of the user need not say where it is, nor how far it goes.
    unknown = not job.runs_trainer and progress.step == 0
    status = changed(
        status,
        step=status.step if unknown else progress.step,
        total_steps=progress.total_steps or (0 if job.runs_trainer else None),
        loss=status.loss if progress.loss is None else _loss_text(progress.loss),
        tokens_per_second=status.tokens_per_second if speed is None else _int64(speed),
        predicted_tokens_per_second=status.predicted_tokens_per_second
        if predicted is None
        else _int64(predicted),
        series=_series(status.series, progress.series),
        compute_by_rank=_compute_by_rank(status.compute_by_rank, progress.compute_by_rank),
        prompt_answers=progress.answers or status.prompt_answers,
        layout=progress.layout or status.layout,
        expected_end=_expected_end(status.expected_end, progress.seconds_left, now=now),
    )
    step, digest = progress.checkpoint_step, progress.checkpoint_digest
    return status if step is None else with_checkpoint(job, status, step, digest, now=now)


def _series(known: str | None, recent: str) -> str | None:
    """Return the figures over all steps, with those that agents have added."""
    newer = step_series.decode(recent, most=step_series.RECENT_POINTS)
    if not newer:
        return known
    points = step_series.with_newer(
        step_series.decode(known or ""), newer, most=step_series.MAX_POINTS
    )
    return step_series.encode(points)


def _compute_by_rank(known: str | None, recent: str) -> str | None:
    """Return the ranks' compute times over all steps, with those that agents have added."""
    newer = rank_compute.decode(recent, most=rank_compute.RECENT_COMPUTE_POINTS)
    if not newer:
        return known
    points = step_series.with_newer(
        rank_compute.decode(known or ""), newer, most=rank_compute.MAX_COMPUTE_POINTS
    )
    return rank_compute.encode(points)


def _expected_end(before: str | None, left: float | None, *, now: float) -> str | None:
    """Return the expected end by the newest figure, or the old one if it differs by little.

    Every write wakes the scheduler and its forecasts, and a pace that varies by a few percent does
    not matter to them.
    """
    if left is None or not 0.0 <= left <= MOST_SECONDS_LEFT:
        return before
    # Far ends may move more before they are written again.
    least = max(END_SECONDS, END_SHARE * left)
    if before is not None and abs(parse_timestamp(before) - now - left) < least:
        return before
    return timestamp(now + left)


def with_agents_report(
    status: TrainingJobStatus, *, waiting_for: str | None, remark: Remark | None = None
) -> TrainingJobStatus:
    """Return the status of a running job with its agents' report. Without one it trains.

    Args:
        status: status of the job. Another summary stays, except that a held gang may grow, or be on
            nodes that go.
        waiting_for: why they wait for the storage of checkpoints. Empty: they do not wait. None: no
            report.
        remark: another remark of the agents.
    """
    # Only replace a summary that this function wrote, or the plain one of training.
    is_report = status.reason in {Reason.STORAGE_UNAVAILABLE, *_REMARKED.values()}
    held = remark is not None and remark.kind is RemarkKind.HELD
    is_report = is_report or (held and status.reason in {Reason.GROWS, Reason.NODE_DISRUPTED})
    if waiting_for is None or not (is_report or status.reason in {Reason.TRAINING, *_SURROUNDINGS}):
        return status
    if waiting_for:
        return with_summary(status, Phase.RUNNING, Reason.STORAGE_UNAVAILABLE, waiting_for)
    if remark is not None:
        return with_summary(status, Phase.RUNNING, _REMARKED[remark.kind], remark.sentence)
    if not is_report:
        return status
    leaves = condition(status, ConditionType.DISRUPTED)
    if leaves is not None and leaves.status == "True":
        return with_summary(status, Phase.RUNNING, leaves.reason, leaves.message)
    return with_summary(status, Phase.RUNNING, Reason.TRAINING, "")


def with_checkpoint(
    job: Job, status: TrainingJobStatus, step: int, digest: str, *, now: float
) -> TrainingJobStatus:
    """Return the status with this checkpoint, unless it has a newer one.

    For the bundled trainer it is committed and verified. For a template its program has reported
    it.

    Args:
        job: the job with its present status.
        status: the status to change.
        step: step of the checkpoint.
        digest: SHA-256 of its manifest.
        now: Unix time in seconds.
    """
    if status.checkpoint is not None and step <= status.checkpoint.step:
        return status
    status = changed(status, checkpoint=CheckpointStatus(step=step, digest=digest[:128]))
    reason = Reason.MANIFEST_VERIFIED if job.runs_trainer else Reason.CHECKPOINT_REPORTED
    return with_condition(
        status, job, ConditionType.CHECKPOINTED, "True", reason, f"step {step}", now
    )


def _loss_text(loss: float) -> str:
    """Return a text that fits the field for any float: a diverged loss must not break it."""
    return f"{loss:.4f}" if abs(loss) < 1e12 else f"{loss:.4e}"


def _int64(figure: float) -> int:
    return int(min(max(figure, 0.0), 2.0**53))


def with_epoch(job: Job, *, epoch: int) -> TrainingJobStatus:
    """Return the status with a new leader's epoch. Writes of earlier leaders then conflict."""
    return changed(job.status, epoch=epoch)


def _without_nodes(
    status: TrainingJobStatus, job: Job, reason: Reason, *, now: float
) -> TrainingJobStatus:
    """Return the status without conditions that only a job with nodes has: it ended or has none."""
    for kind in _OF_NODES:
        status = cleared(status, job, kind, reason, now=now)
    return status
