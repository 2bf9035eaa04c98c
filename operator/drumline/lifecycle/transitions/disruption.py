"""Transitions of giving way: a place promised, a notice out, taken back, or followed.

A disruption is durable in status before any notice is sent for it, and leaves status in the same
write in which the job gives its nodes, or some members, up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from drumline.api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline.api.jobstatus import DisruptionStatus, TrainingJobStatus
from drumline.lifecycle.model.conditions import changed, cleared, with_condition, with_summary
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import pool_nodes
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.transitions.phases import requeued, waiting


def nominated(
    job: Job, *, pool: str, nodes: Sequence[str], reason: str, message: str, now: float
) -> TrainingJobStatus:
    """Waits for others to give way: these places are held for it."""
    status = waiting(job, reason=reason, message=message, now=now)
    return changed(status, nominated=pool_nodes(pool, nodes))


def nomination_cleared(job: Job) -> TrainingJobStatus:
    """The places are held no longer; it waits as any other."""
    return changed(job.status, nominated=None)


def disrupted(
    job: Job,
    *,
    kind: DisruptionKind,
    by: str,
    message: str,
    deadline: float,
    now: float,
    by_uid: str = "",
    indices: Collection[int] | None = None,
) -> TrainingJobStatus:
    """Has to give way: its agents are to save until `deadline`.

    A disruption of nodes that grows keeps its notice: the save is everybody's. Whoever leaves for
    another job is promised nothing any more (see `nominated_for_move`).

    Args:
        job: has its places.
        kind: what is coming.
        by: the job that needs the GPUs (namespace/name), or who announced it.
        message: what is coming, for people.
        deadline: seconds since the epoch.
        now: seconds since the epoch.
        by_uid: uid of that job.
        indices: members that have to go; None: all.
    """
    before = job.status.disruption
    goes_on = before is not None and before.indices is not None and indices is not None
    disruption = DisruptionStatus(
        id=before.id if before and goes_on else f"{kind}-{job.status.generation}-{int(now * 1000)}",
        kind=kind,
        by=by[:253],
        by_uid=by_uid,
        reason=message[:1024],
        requested_at=before.requested_at if before and goes_on else timestamp(now),
        deadline=timestamp(deadline),
        indices=None if indices is None else sorted(indices),
    )
    preempted_ = kind is DisruptionKind.PREEMPTION
    reason = Reason.PREEMPTED if preempted_ else Reason.NODE_DISRUPTED
    nominated = None if preempted_ and indices is None else job.status.nominated
    status = changed(job.status, disruption=disruption, nominated=nominated)
    status = with_condition(status, job, ConditionType.DISRUPTED, "True", reason, message, now)
    return with_summary(status, status.phase or Phase.RUNNING, reason, message)


def nominated_for_move(
    status: TrainingJobStatus, *, pool: str, nodes: Sequence[str]
) -> TrainingJobStatus:
    """Has to give way, and starts again on these nodes: they are held for it until then."""
    return changed(status, nominated=pool_nodes(pool, nodes))


def disruption_withdrawn(job: Job, *, message: str, now: float) -> TrainingJobStatus:
    """It need not give way after all."""
    status = changed(job.status, disruption=None, nominated=None)
    reason = Reason.WITHDRAWN
    status = cleared(status, job, ConditionType.DISRUPTED, reason, now=now)
    return with_summary(status, status.phase or Phase.RUNNING, reason, message)


def preempted(job: Job, *, saved: bool, now: float) -> TrainingJobStatus:
    """Gives its nodes to another job, or for others of its own; keeps its place in the queue.

    Args:
        job: with the disruption it follows, and the newest checkpoint.
        saved: whether its agents acknowledged that checkpoint on request.
        now: seconds since the epoch.
    """
    disruption, checkpoint = job.status.disruption, job.status.checkpoint
    by = disruption.by if disruption is not None else "another job"
    went = f"gave way to {by}" if job.status.nominated is None else f"moves ({by})"
    kept = f"step {checkpoint.step} is saved" if checkpoint else "nothing is saved"
    late = "" if saved else "; its agents did not save on request"
    text = f"{went}; {kept}{late}"
    return requeued(job, reason=Reason.PREEMPTED, message=text, now=now)
