"""Transitions that change the members of a gang: a new generation, or lost members.

A generation is stored before any action for it. Its pods are created afterwards, and its record is
pushed last. Members that a transition does not name keep node, pod generation and pod.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat

from drumline.lifecycle.incidents.gpu_seconds import counting_started, with_elapsed
from drumline.lifecycle.incidents.ledger import with_boundary_passed
from drumline.lifecycle.incidents.timeline import DECIDED
from drumline.lifecycle.model.conditions import (
    changed,
    cleared,
    condition,
    is_true,
    with_condition,
    with_summary,
)
from drumline.lifecycle.model.hardware import GpuShare
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import (
    GangMember,
    assignment_of,
    lost_positions,
    members_of,
    resized_members,
    with_new_nodes,
    with_new_pods,
)
from drumline.lifecycle.model.timestamps import order_timestamp, timestamp
from drumline.lifecycle.transitions.phases import MAX_INCIDENT_CHARACTERS
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus


def admitted(
    job: Job,
    *,
    pool: str,
    nodes: Sequence[str],
    epoch: int,
    image: str,
    priority: int,
    now: float,
    signing_key: str | None = None,
    agent_image: str | None = None,
    share: GpuShare | None = None,
    surplus_pool: str | None = None,
    surplus: Sequence[str] = (),
) -> TrainingJobStatus:
    """Return the status of a placed job. An elastic gang may have fewer nodes than spec.nodes.

    Args:
        job: a waiting job.
        pool: GpuPool of its nodes.
        nodes: nodes by position.
        epoch: epoch of the leader that writes this.
        image: image of its pods from now on.
        priority: its priority in this cycle. Later ones count at most as much.
        now: seconds since the epoch.
        signing_key: name of the key of its token, if it has agents.
        agent_image: image of its agents, if that is another one.
        share: fraction of a GPU that each of its GPUs is. None means 1.
        surplus_pool: spot pool of its surplus, if it starts with one.
        surplus: nodes of the surplus.
    """
    # A new generation is one write: members, image, key and times change together.
    generation = (job.status.generation or 0) + 1
    members = _first_members(nodes, surplus, pool=surplus_pool, generation=generation)
    status = changed(
        job.status,
        observed_generation=job.object_generation,
        generation=generation,
        epoch=epoch,
        assignment=assignment_of(pool, members),
        nominated=None,
        expected_start=None,
        expected_start_by=None,
        image=image,
        agent_image=agent_image,
        code_digest=_code_digest(job),
        priority=priority,
        signing_key=signing_key,
        queued_at=job.status.queued_at or order_timestamp(job.queued_at),
        after=job.spec.after,
        admitted_at=timestamp(now),
        generation_at=timestamp(now),
        previous_ranks=job.status.ranks,
        ready=f"0/{len(members)}",
        restarts=job.status.restarts or 0,
    )
    status = with_boundary_passed(counting_started(status, now=now, share=share), DECIDED, now=now)
    where = f"in pool {pool}" + (f", surplus in pool {surplus_pool}" if surplus else "")
    return _starting(status, job, where=where, now=now)


def _first_members(
    nodes: Sequence[str], surplus: Sequence[str], *, pool: str | None, generation: int
) -> list[GangMember]:
    pools = [*repeat(None, len(nodes)), *repeat(pool, len(surplus))]
    return [
        GangMember(index=index, node=node, pod_generation=generation, surplus_pool=beyond)
        for index, (node, beyond) in enumerate(zip((*nodes, *surplus), pools, strict=True))
    ]


def _starting(status: TrainingJobStatus, job: Job, *, where: str, now: float) -> TrainingJobStatus:
    """Return the status with the conditions of a gang that has places and no pods yet."""
    for kind in (ConditionType.ADMITTED, ConditionType.PLACED):
        status = with_condition(status, job, kind, "True", Reason.PLACED, where, now)
    if condition(status, ConditionType.RUNNING) is not None:
        status = with_condition(
            status, job, ConditionType.RUNNING, "False", Reason.STARTING_PODS, "", now
        )
    return with_summary(status, Phase.STARTING, Reason.STARTING_PODS, "")


def _code_digest(job: Job) -> str | None:
    code = job.spec.template.code if job.spec.template is not None else None
    return code.digest if code is not None else None


def members_lost(
    job: Job, *, indices: Collection[int], reason: Reason, message: str, now: float
) -> TrainingJobStatus:
    """Return the status with lost members: they are placed again, or the gang shrinks.

    Args:
        job: the job with its present status.
        indices: indices of the lost members.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    assignment = job.status.assignment
    assert assignment is not None  # noqa: S101 - only an admitted job has members
    # Members that are lost already stay lost. Joining members are dropped with the failed growth.
    lost = sorted({*indices, *(assignment.lost or ())})
    status = changed(
        with_elapsed(job, now=now),
        assignment=assignment.model_copy(update={"lost": lost, "joining": None}),
        nominated=None,
        disruption=None,
        incident=message[:MAX_INCIDENT_CHARACTERS],
        ready=f"{job.members - len(lost)}/{job.members}",
    )
    status = with_condition(status, job, ConditionType.PLACED, "False", reason, message, now)
    status = cleared(status, job, ConditionType.DISRUPTED, reason, now=now)
    return _recovering(status, job, reason, message, now=now)


def members_replaced(
    job: Job, *, nodes: Sequence[str], replaced: Collection[int], epoch: int, now: float
) -> TrainingJobStatus:
    """Return a new generation in which some members get new pods on `nodes[position]`.

    Args:
        job: the job. It has an assignment, perhaps with lost members.
        nodes: nodes of the whole gang, by position.
        replaced: positions (not indices) of the members that get new pods.
        epoch: epoch of the leader that writes this.
        now: seconds since the epoch.
    """
    generation = (job.status.generation or 0) + 1
    before = members_of(job.status)
    members = with_new_nodes(before, nodes, replaced, pod_generation=generation)
    chosen = ", ".join(f"{before[p].index} on {nodes[p]}" for p in sorted(replaced)[:3])
    more = f" and {len(replaced) - 3} more" if len(replaced) > 3 else ""
    text = f"new pods for members {chosen}{more}"
    lost = lost_positions(job.status) - frozenset(replaced)
    status = _next(job, members, lost=[before[p].index for p in lost], epoch=epoch, now=now)
    status = with_condition(
        status, job, ConditionType.PLACED, "True", Reason.MEMBER_PLACED, text, now
    )
    return _recovering(status, job, Reason.MEMBER_PLACED, text, now=now)


def resized(
    job: Job,
    *,
    kept: Collection[int],
    added: Sequence[str],
    epoch: int,
    now: float,
    surplus_pool: str | None = None,
) -> TrainingJobStatus:
    """Return a new generation of another size.

    If members are only added while the job runs, the present members train until the new ones are
    ready.

    Args:
        job: the job. It is elastic and has an assignment.
        kept: positions of members that stay.
        added: nodes of new members.
        surplus_pool: spot pool of these nodes, if the new members are surplus.
        epoch: epoch of the leader that writes this.
        now: seconds since the epoch.
    """
    # Phase 1: the new members.
    before = members_of(job.status)
    generation = (job.status.generation or 0) + 1
    members = resized_members(
        before, kept=kept, added=added, pod_generation=generation, surplus_pool=surplus_pool
    )
    # Phase 2: does the gang only grow while it trains? Then nobody has to stop now.
    joining = [member.index for member in members if member.pod_generation == generation]
    text = f"from {len(before)} to {len(members)} of {job.spec.nodes} nodes"
    grows = len(kept) == len(before) and is_true(job.status, ConditionType.RUNNING)
    status = _next(job, members, joining=joining if grows else (), epoch=epoch, now=now)
    # Phase 3: otherwise all ranks start again in the new size.
    if grows:
        return with_summary(status, Phase.RUNNING, Reason.GROWS, text)
    status = with_condition(status, job, ConditionType.PLACED, "True", Reason.SHRUNK, text, now)
    return _recovering(status, job, Reason.SHRUNK, text, now=now)


def growth_abandoned(job: Job, *, message: str, now: float) -> TrainingJobStatus:
    """Return the status without joining members. The others continue and never knew of them.

    Args:
        job: the job with its present status.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    assignment = job.status.assignment
    joining = frozenset((assignment.joining if assignment else None) or ())
    members = [member for member in members_of(job.status) if member.index not in joining]
    pool = assignment.gpu_pool if assignment else ""
    status = changed(
        with_elapsed(job, now=now),
        assignment=assignment_of(pool, members),
        ready=f"{len(members)}/{len(members)}",
    )
    text = f"continues with {len(members)} nodes: {message}"
    return with_summary(status, Phase.RUNNING, Reason.TRAINING, text)


def restarted(
    job: Job,
    *,
    indices: Collection[int],
    reason: Reason,
    message: str,
    epoch: int,
    now: float,
) -> TrainingJobStatus:
    """Return a new generation on the same nodes, in which some members get new pods.

    Args:
        job: the job with its present status.
        indices: indices of members that get new pods.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        epoch: epoch of this leader.
        now: Unix time in seconds.
    """
    generation = (job.status.generation or 0) + 1
    members = with_new_pods(members_of(job.status), indices, pod_generation=generation)
    assignment = job.status.assignment
    lost = () if assignment is None else assignment.lost or ()
    status = _next(job, members, lost=lost, epoch=epoch, now=now)
    status = changed(status, incident=message[:MAX_INCIDENT_CHARACTERS])
    return _recovering(status, job, reason, message, now=now)


def _next(
    job: Job,
    members: Sequence[GangMember],
    *,
    epoch: int,
    now: float,
    lost: Collection[int] = (),
    joining: Collection[int] = (),
) -> TrainingJobStatus:
    """Return the next generation with these members.

    A disruption that still applies is announced again once they train, because a notice is for one
    generation.
    """
    # The time until now belongs to the old generation.
    generation = (job.status.generation or 0) + 1
    pool = job.status.assignment.gpu_pool if job.status.assignment else ""
    surviving = sum(member.pod_generation < generation for member in members)
    status = with_boundary_passed(with_elapsed(job, now=now), DECIDED, now=now)
    status = cleared(status, job, ConditionType.DISRUPTED, Reason.MEMBERS_CHANGED, now=now)
    return changed(
        status,
        nominated=None,
        disruption=None,
        generation=generation,
        epoch=epoch,
        assignment=assignment_of(pool, members, lost=lost, joining=joining),
        generation_at=timestamp(now),
        previous_ranks=job.status.ranks,
        ready=f"{surviving}/{len(members)}",
    )


def _recovering(
    status: TrainingJobStatus, job: Job, reason: Reason, message: str, *, now: float
) -> TrainingJobStatus:
    status = with_condition(status, job, ConditionType.RUNNING, "False", reason, message, now)
    status = with_condition(status, job, ConditionType.RECOVERING, "True", reason, message, now)
    return with_summary(status, Phase.RECOVERING, reason, message)
