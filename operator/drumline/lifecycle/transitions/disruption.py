"""Transitions of nomination and disruption: reserved nodes, announced and finished evictions.

A disruption is written to the status before any notice is sent for it. It is removed in the same
write in which the job gives up its nodes or some members.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from drumline.lifecycle.model.conditions import changed, with_condition, with_summary
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import pool_nodes
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.transitions.phases import requeued, waiting
from drumline_api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline_api.jobstatus import MAX_PREEMPTIONS, DisruptionStatus, TrainingJobStatus

_REASONS = {
    DisruptionKind.PREEMPTION: Reason.PREEMPTED,
    DisruptionKind.QUEUE_STOPPED: Reason.QUEUE_STOPPED,
    DisruptionKind.IDLE: Reason.STAYS_IDLE,
}
"""Reasons of disruptions that no node causes."""


def nominated(
    job: Job, *, pool: str, nodes: Sequence[str], reason: str, message: str, now: float
) -> TrainingJobStatus:
    """Return the status of a job whose nodes are reserved until its victims leave.

    Args:
        job: the job with its present status.
        pool: pool of the reserved nodes.
        nodes: a node for each member.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    status = waiting(job, reason=reason, message=message, now=now)
    return changed(status, nominated=pool_nodes(pool, nodes))


def nomination_cleared(job: Job) -> TrainingJobStatus:
    """Return the status without reserved nodes. The job waits like any other job."""
    return changed(job.status, nominated=None)


def disrupted(
    job: Job,
    *,
    kind: DisruptionKind,
    by: str,
    message: str,
    deadline: float | None,
    now: float,
    by_uid: str = "",
    indices: Collection[int] | None = None,
    movable: bool = False,
    renewed: bool = False,
) -> TrainingJobStatus:
    """Return the status of a job that must leave all or some of its nodes by `deadline`.

    A node disruption that affects further members keeps its notice, because all members save
    together. A job that is preempted as a whole loses its own nomination (but see
    `nominated_for_move`).

    Args:
        job: the job. It has an assignment.
        kind: kind of the disruption.
        by: the preemptor (namespace/name), or the source of the announcement.
        message: the reason for users.
        deadline: seconds since the epoch. None: members stay until there is another node.
        now: seconds since the epoch.
        by_uid: uid of the preemptor.
        indices: members that must leave. None: all.
        movable: whether these members may be placed elsewhere from now on.
        renewed: whether the agents are asked again, with a new notice.
    """
    # Phase 1: does the notice that the agents have still apply? Then its id and time stay.
    before = job.status.disruption
    in_part = before is not None and before.indices is not None and indices is not None
    continues = in_part and not renewed
    new_id = f"{kind}-{job.status.generation}-{int(now * 1000)}"
    disruption = DisruptionStatus(
        id=before.id if before and continues else new_id,
        kind=kind,
        by=by[:253],
        by_uid=by_uid,
        reason=message[:1024],
        requested_at=before.requested_at if before and continues else timestamp(now),
        deadline=None if deadline is None else timestamp(deadline),
        indices=None if indices is None else sorted(indices),
        movable=movable or None,
    )
    # Phase 2: a job that leaves as a whole does not need its reserved nodes any more.
    reason = _REASONS.get(kind, Reason.NODE_DISRUPTED)
    nominated = None if kind in _REASONS and indices is None else job.status.nominated
    status = changed(job.status, disruption=disruption, nominated=nominated)
    status = with_condition(status, job, ConditionType.DISRUPTED, "True", reason, message, now)
    return with_summary(status, status.phase or Phase.RUNNING, reason, message)


def movable(job: Job, *, message: str, now: float) -> TrainingJobStatus:
    """Return the status after the disrupted members have saved, or need not save.

    They may be placed elsewhere from now on.

    Args:
        job: the job with its present status.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    disruption = job.status.disruption
    assert disruption is not None  # noqa: S101 - the caller asked for the save that it names
    status = changed(job.status, disruption=disruption.model_copy(update={"movable": True}))
    reason = Reason.NODE_DISRUPTED
    status = with_condition(status, job, ConditionType.DISRUPTED, "True", reason, message, now)
    return with_summary(status, status.phase or Phase.RUNNING, reason, message)


def nominated_for_move(
    status: TrainingJobStatus, *, pool: str, nodes: Sequence[str]
) -> TrainingJobStatus:
    """Return the status with nodes reserved for a move, until the job has left its old ones.

    Args:
        status: the job's present status.
        pool: pool of the reserved nodes.
        nodes: a node for each member.
    """
    return changed(status, nominated=pool_nodes(pool, nodes))


def disruption_withdrawn(job: Job, *, message: str, now: float) -> TrainingJobStatus:
    """Return the status after a disruption ended before the job left: it stays.

    Args:
        job: the job with its present status.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    status, kind = changed(job.status, disruption=None, nominated=None), ConditionType.DISRUPTED
    status = with_condition(status, job, kind, "False", Reason.WITHDRAWN, message, now)
    phase = status.phase or Phase.RUNNING
    if phase is Phase.RUNNING:
        # The condition reports the withdrawal. The summary would still report it days later.
        return with_summary(status, phase, Reason.TRAINING, "")
    return with_summary(status, phase, Reason.WITHDRAWN, message)


def preempted(job: Job, *, saved: bool, now: float) -> TrainingJobStatus:
    """Return the status of a job that gave its nodes back. It keeps its queue position.

    Another job needs them, the job moves, or its queue is stopped.

    Args:
        job: the job with the disruption and the newest checkpoint.
        saved: whether its agents acknowledged that checkpoint on request.
        now: seconds since the epoch.
    """
    disruption, checkpoint = job.status.disruption, job.status.checkpoint
    by = disruption.by if disruption is not None else "another job"
    left = f"preempted by {by}" if job.status.nominated is None else f"moves ({by})"
    kept = f"step {checkpoint.step} is saved" if checkpoint else "nothing is saved"
    late = "" if saved else "; its agents did not save on request"
    reason = Reason.PREEMPTED
    if disruption is not None and disruption.kind is DisruptionKind.QUEUE_STOPPED:
        left, reason = disruption.reason, Reason.QUEUE_STOPPED
    # A move is the operator's choice, so it does not count as a preemption.
    elif job.status.nominated is None:
        times = [*(job.status.preempted_at or ()), timestamp(now)]
        job = replace(job, status=changed(job.status, preempted_at=times[-MAX_PREEMPTIONS:]))
    return requeued(job, reason=reason, message=f"{left}; {kept}{late}", now=now)
