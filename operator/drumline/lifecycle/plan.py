"""One job: plan(job, observed, now) -> what to write and what to do next.

Level-triggered: the plan depends on what is, never on what happened, so a crash between any two
writes is mended by planning again. The order below is the order of precedence. Every step that
changes the status returns at once: the controller writes it, durably, and plans again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drumline.api.conditions import ConditionType, Phase, Reason
from drumline.lifecycle import status as to
from drumline.lifecycle.actions import (
    Action,
    CreateMembers,
    DeleteJob,
    DeletePods,
    Plan,
    ProtectMembers,
    PushRecord,
)
from drumline.lifecycle.budgets import charged
from drumline.lifecycle.failures import FailureClass, classify, final_report, root_cause
from drumline.lifecycle.job import Job, Observed, PodFacts, seconds
from drumline.lifecycle.sizes import legal_sizes
from drumline.lifecycle.trainerconfig import trainer_config
from drumline_trainer.config import ConfigError
from drumline_trainer.contract import (
    FaultClass,
    GenerationRecord,
    Member,
    Progress,
    host_name,
    pod_name,
)

if TYPE_CHECKING:
    from drumline.api.trainingjob import TrainingJobStatus
    from drumline.lifecycle.failures import Failure

MANAGER = "drumline.dev/operator"
PEER_LOST_PATIENCE_SECONDS = 10.0
"""How long members may blame a peer before that peer has to have shown its own end."""
SLOW_START_SECONDS = 10.0
"""A start that takes longer says in status what it waits for."""
MAX_BACKOFF_SECONDS = 300.0


def is_ours(job: Job) -> bool:
    """Whether this operator reconciles the job (`managedBy` as in batch/v1 Job)."""
    return job.spec.managed_by in (None, MANAGER)


def is_queued(job: Job) -> bool:
    """Whether the scheduler should find a place for the job."""
    return (
        is_ours(job)
        and not job.finished
        and not job.deleting
        and not job.spec.suspend
        and job.status.assignment is None
        and not to.is_true(job.status, ConditionType.SUSPENDED)
        and config_error(job) is None
    )


def config_error(job: Job) -> str | None:
    """Why the trainer's schema refuses this job, or None."""
    if not job.runs_trainer:
        return None
    try:
        trainer_config(job.spec)
    except ConfigError as error:
        return str(error)
    return None


def restart_backoff_seconds(restarts: int) -> float:
    """0 s before the first restart, then 5, 10, 20 ... up to 300 s."""
    return 0.0 if restarts <= 1 else min(MAX_BACKOFF_SECONDS, 5.0 * 2 ** min(restarts - 2, 16))


def plan(job: Job, observed: Observed, *, now: float, epoch: int) -> Plan:
    """What this job needs now."""
    if not is_ours(job):
        return Plan()
    if job.deleting:
        return Plan(actions=_delete_below(observed.pods, None))
    if job.finished:
        return _finished(job, observed, now=now)
    if job.spec.suspend or to.is_true(job.status, ConditionType.SUSPENDED):
        return _suspension(job, observed, now=now)
    if job.status.assignment is None:  # a running job is not judged by a newer schema
        refused = _configuration(job, now=now)
        return refused or Plan(actions=_delete_below(observed.pods, None))
    if job.size not in legal_sizes(job.spec):
        text = f"resized to {job.spec.nodes} nodes while it held its places"
        return Plan(status=to.released(job, reason=Reason.RESIZED, message=text, now=now))
    if job.status.epoch != epoch:
        return Plan(status=to.with_epoch(job, epoch=epoch))
    return _admitted(job, observed, now=now, epoch=epoch)


def _finished(job: Job, observed: Observed, *, now: float) -> Plan:
    """Pods that still run are deleted, ended ones stay for their logs until the TTL."""
    still = tuple(pod for pod in observed.pods if pod.end is None)
    actions: tuple[Action, ...] = _delete_below(still, None)
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is None or job.status.finished_at is None:
        return Plan(actions=actions)
    due = seconds(job.status.finished_at) + ttl
    if now >= due:
        return Plan(actions=(DeleteJob(),))
    return Plan(actions=actions, requeue_at=due)


def _suspension(job: Job, observed: Observed, *, now: float) -> Plan:
    suspended = to.is_true(job.status, ConditionType.SUSPENDED)
    if job.spec.suspend and not suspended:
        return Plan(status=to.suspended(job, now=now))
    if not job.spec.suspend:
        return Plan(status=to.resumed(job, now=now))
    return Plan(actions=_delete_below(observed.pods, None))


def _configuration(job: Job, *, now: float) -> Plan | None:
    error = config_error(job)
    marked = to.is_true(job.status, ConditionType.INVALID_CONFIG)
    if error is None:
        return Plan(status=to.valid_config(job, now=now)) if marked else None
    if marked and job.status.message == error[:2048]:
        return Plan()
    return Plan(status=to.invalid_config(job, message=error, now=now))


def _admitted(job: Job, observed: Observed, *, now: float, epoch: int) -> Plan:
    generation = job.status.generation or 0
    current = tuple(pod for pod in observed.pods if pod.generation == generation)
    older = tuple(pod for pod in observed.pods if pod.generation < generation)

    if _all_succeeded(job, current):
        return Plan(status=to.succeeded(job, progress=_final_progress(current), now=now))
    failures = [failure for pod in current if (failure := classify(pod)) is not None]
    if failures:
        return _failed(job, current, failures, now=now, epoch=epoch)
    expired = _active_deadline(job, now=now)
    if expired is not None:
        return expired
    present = {pod.name for pod in current} | observed.expected_pods
    missing = tuple(
        index
        for index in range(job.spec.nodes)
        if pod_name(job.name, index, generation) not in present
    )
    if missing and to.is_true(job.status, ConditionType.RUNNING):
        names = ", ".join(pod_name(job.name, index, generation) for index in missing[:3])
        text = f"{len(missing)} of {job.spec.nodes} pods vanished while running: {names}"
        return Plan(status=to.released(job, reason=Reason.POD_LOST, message=text, now=now))
    if to.is_true(job.status, ConditionType.RUNNING) and len(current) == job.spec.nodes:
        return _refresh(job, observed, current, now=now)
    if len(current) < job.spec.nodes and now >= _start_deadline(job):
        return _too_late(job, current, older, now=now)
    told = observed.acknowledged_generation == generation
    if (missing and told) or observed.contradicted_generation == generation:
        return _members_changed(job, now=now, epoch=epoch)
    if missing:
        return _create(job, observed, older, missing, now=now)
    if len(current) < job.spec.nodes:  # created, and not shown by the watch yet
        return Plan(requeue_at=_start_deadline(job))
    return _start(job, observed, current, now=now)


def _create(
    job: Job,
    observed: Observed,
    older: tuple[PodFacts, ...],
    missing: tuple[int, ...],
    *,
    now: float,
) -> Plan:
    """Members of this generation, once the last one's have given their devices back."""
    generation = job.status.generation or 0
    clean = _delete_below(older, generation)
    ours = {pod_name(job.name, index, generation) for index in range(job.spec.nodes)}
    # Created for an earlier generation and not shown yet: alive, for all we know.
    unseen = observed.expected_pods - ours
    # A zombie elsewhere is fenced by its generation; one on our nodes still holds their devices.
    places = frozenset(job.status.assignment.node_names() if job.status.assignment else ())
    if unseen or any(pod.end is None and pod.node in places for pod in older):
        return Plan(actions=clean, requeue_at=_start_deadline(job))
    begin = _generation_at(job) + restart_backoff_seconds(job.status.restarts or 0)
    if to.is_true(job.status, ConditionType.RECOVERING) and now < begin:
        return Plan(actions=clean, requeue_at=begin)
    return Plan(
        actions=(*clean, CreateMembers(indices=missing)),
        requeue_at=_start_deadline(job),
    )


def _start(job: Job, observed: Observed, current: tuple[PodFacts, ...], *, now: float) -> Plan:
    """All members exist: tell them of each other, wait until they run."""
    generation = job.status.generation
    # Who has already ended well had the record, whoever pushed it.
    through = any(pod.end is not None and pod.end.succeeded for pod in current)
    acknowledged = through or observed.acknowledged_generation == generation
    standing = all(pod.ready or pod.end is not None for pod in current)
    if standing and (acknowledged or not job.runs_trainer):
        if not observed.protected:
            return Plan(actions=(ProtectMembers(),))
        return Plan(status=to.running(job, now=now))
    deadline = _start_deadline(job)
    if now >= deadline:
        return _too_late(job, current, (), now=now)
    if job.has_agents and not acknowledged and all(pod.reachable for pod in current):
        return Plan(actions=(PushRecord(record=generation_record(job, current)),))
    slow = _generation_at(job) + SLOW_START_SECONDS
    if now < slow:
        return Plan(requeue_at=slow)
    look_again = min(deadline, now + SLOW_START_SECONDS)
    status = _slow_start(job, current) if observed.refresh_due else job.status
    return Plan(status=_changed(job, status), requeue_at=look_again)


def _members_changed(job: Job, *, now: float, epoch: int) -> Plan:
    """Agents know one membership a generation: with another pod among them a new one begins."""
    text = "a pod was replaced after its gang had been told who its members are"
    reason = Reason.MEMBERS_CHANGED
    every = range(job.size)
    return Plan(
        status=to.restarting(job, indices=every, reason=reason, message=text, epoch=epoch, now=now)
    )


def _too_late(
    job: Job, current: tuple[PodFacts, ...], older: tuple[PodFacts, ...], *, now: float
) -> Plan:
    """Past the start deadline whatever is bound is given back: never a part of a gang (I3)."""
    absent = job.spec.nodes - len(current)
    leaving = [f"{pod.name} on {pod.node}" for pod in older if pod.end is None][:3]
    causes = (
        f"{absent} pods are not created" if absent else "",
        f"waiting for pods of an earlier generation to go: {', '.join(leaving)}" if leaving else "",
        _laggards(current),
    )
    text = f"not all pods started within {job.spec.start_deadline_seconds} s: "
    text += "; ".join(cause for cause in causes if cause)
    reason = Reason.START_DEADLINE_EXCEEDED
    return Plan(status=to.released(job, reason=reason, message=text, now=now))


def generation_record(job: Job, current: tuple[PodFacts, ...]) -> GenerationRecord:
    """The membership all members of this generation are to know."""
    ordered = sorted(current, key=lambda pod: pod.index)
    checkpoint = job.status.checkpoint
    return GenerationRecord(
        job_uid=job.uid,
        generation=job.status.generation or 0,
        epoch=job.status.epoch or 0,
        members=tuple(
            Member(
                index=pod.index,
                pod_uid=pod.uid,
                address=pod.ip,
                host=host_name(job.name, pod.index),
                ranks=job.spec.gpus_per_node,
            )
            for pod in ordered
        ),
        image=job.status.image or "",
        restore_step=checkpoint.step if checkpoint else None,
        restore_digest=checkpoint.digest if checkpoint else "",
    )


def _failed(
    job: Job,
    current: tuple[PodFacts, ...],
    failures: list[Failure],
    *,
    now: float,
    epoch: int,
) -> Plan:
    cause = root_cause(failures)
    if cause.failure_class is FailureClass.PEER_LOST and any(pod.end is None for pod in current):
        ends = [pod.end.ended_at for pod in current if pod.end and pod.end.ended_at]
        patience = min(ends, default=0.0) + PEER_LOST_PATIENCE_SECONDS
        if now < patience:
            return Plan(requeue_at=patience)
        return Plan(status=_lost_in_silence(job, current, now=now))
    match cause.failure_class:
        case FailureClass.CONFIGURATION:
            status = to.failed(job, reason=Reason.CONFIG_REFUSED, message=cause.sentence, now=now)
        case FailureClass.CORRUPT_CHECKPOINT:
            reason = Reason.CORRUPT_CHECKPOINT
            status = to.failed(job, reason=reason, message=cause.sentence, now=now)
        case FailureClass.REFUSED:
            reason = Reason.KUBELET_REFUSED
            status = to.released(job, reason=reason, message=cause.sentence, now=now)
        case FailureClass.INFRASTRUCTURE:
            reason = Reason.POD_LOST
            status = to.released(job, reason=reason, message=cause.sentence, now=now)
        case FailureClass.APPLICATION | FailureClass.PEER_LOST:
            status = _restart_or_fail(job, cause, now=now, epoch=epoch)
    return Plan(status=status)


def _lost_in_silence(job: Job, current: tuple[PodFacts, ...], *, now: float) -> TrainingJobStatus:
    """The others lost a peer that shows no end of its own: its node is gone, not its code."""
    silent = [f"{pod.name} on {pod.node}" for pod in current if pod.end is None][:3]
    text = f"its peers lost {', '.join(silent)}, which does not say how it ended"
    return to.released(job, reason=Reason.POD_LOST, message=text, now=now)


def _restart_or_fail(job: Job, cause: Failure, *, now: float, epoch: int) -> TrainingJobStatus:
    allowed, used = job.spec.recovery.max_restarts, job.status.restarts or 0
    if used >= allowed:
        text = f"{cause.sentence}; used {used} of {allowed} restarts (recovery.maxRestarts)"
        return to.failed(job, reason=Reason.RESTARTS_EXHAUSTED, message=text, now=now)
    status = charged(job.status, job.spec.recovery, FaultClass.APPLICATION, at=now)
    return to.restarting(
        replace(job, status=status),
        indices=range(job.size),
        reason=Reason.POD_FAILED,
        message=f"{cause.sentence}; restart {used + 1} of {allowed}",
        epoch=epoch,
        now=now,
    )


def _refresh(job: Job, observed: Observed, current: tuple[PodFacts, ...], *, now: float) -> Plan:
    """While training goes on only the figures change, as often as the write budget allows."""
    begin = seconds(job.status.started_at) if job.status.started_at else now
    limit = job.spec.active_deadline_seconds
    due = None if limit is None else begin + limit
    if observed.progress is None:
        return Plan(requeue_at=due)
    status = to.with_progress(job, job.status, observed.progress, now=now)
    ready = sum(1 for pod in current if pod.ready or pod.end is not None)
    status = status.model_copy(update={"ready": f"{ready}/{job.spec.nodes}"})
    return Plan(status=_changed(job, status), requeue_at=due)


def _active_deadline(job: Job, *, now: float) -> Plan | None:
    limit = job.spec.active_deadline_seconds
    if limit is None or job.status.started_at is None:
        return None
    if now < seconds(job.status.started_at) + limit:
        return None
    text = f"ran longer than activeDeadlineSeconds={limit}"
    reason = Reason.ACTIVE_DEADLINE_EXCEEDED
    return Plan(status=to.failed(job, reason=reason, message=text, now=now))


def _slow_start(job: Job, current: tuple[PodFacts, ...]) -> TrainingJobStatus:
    pulling = any("Image" in pod.waiting for pod in current)
    reason = Reason.PULLING_IMAGES if pulling else Reason.WAITING_FOR_AGENTS
    ready = sum(1 for pod in current if pod.reachable)
    status = job.status.model_copy(update={"ready": f"{ready}/{job.spec.nodes}"})
    return to.summarize(status, Phase.STARTING, reason, _laggards(current))


def _laggards(current: tuple[PodFacts, ...]) -> str:
    members = sorted(current, key=lambda pod: pod.index)
    late = [pod for pod in members if not pod.reachable and pod.end is None]
    named = "; ".join(f"{pod.name} on {pod.node}: {pod.waiting or 'not ready'}" for pod in late[:3])
    more = f"; and {len(late) - 3} more" if len(late) > 3 else ""
    return f"{len(late)} of {len(current)} pods are not up: {named}{more}" if late else ""


def _all_succeeded(job: Job, current: tuple[PodFacts, ...]) -> bool:
    ended = [pod for pod in current if pod.end is not None and pod.end.succeeded]
    return len(ended) == job.spec.nodes


def _final_progress(current: tuple[PodFacts, ...]) -> Progress | None:
    first = min(current, key=lambda pod: pod.index)
    report = final_report(first.end) if first.end is not None else None
    return report.progress if report is not None else None


def _delete_below(pods: tuple[PodFacts, ...], generation: int | None) -> tuple[Action, ...]:
    """Delete pods below this generation (None: all) that are not going already."""
    going = {
        pod.generation
        for pod in pods
        if not pod.terminating and (generation is None or pod.generation < generation)
    }
    return (DeletePods(generations=tuple(sorted(going))),) if going else ()


def _generation_at(job: Job) -> float:
    return seconds(job.status.generation_at) if job.status.generation_at else job.created_at


def _start_deadline(job: Job) -> float:
    backoff = restart_backoff_seconds(job.status.restarts or 0)
    return _generation_at(job) + backoff + job.spec.start_deadline_seconds


def _changed(job: Job, status: TrainingJobStatus) -> TrainingJobStatus | None:
    return None if status == job.status else status
