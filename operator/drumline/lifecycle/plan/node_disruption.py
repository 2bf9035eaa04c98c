"""Members on nodes with an announced end: they save, and move, stay or leave.

| disruption | job | first | then | at the deadline |
|---|---|---|---|---|
| likely (a cordon) | saves | asked to save | moves to a found node, or stays | |
| likely | other | | stays | |
| certain | saves | asked to save | moves to a found node, or trains | leaves |
| certain | template | | moves to found nodes as a whole, or runs | leaves as a whole |
| certain | no checkpoint | | trains: a restart begins at step 0 | leaves |

A job *saves* if it runs the bundled trainer with a checkpoint, or a program that acknowledges saves
with the client. It is not known what another template has saved, so only a certain disruption moves
it. The scheduler finds the other nodes and places the members there in one write (`evacuated`). No
member gives its node up before another one is found. A drain shows in no field of a node, so the
PodDisruptionBudget lets it evict those members once they have saved. `failure` reschedules an
evicted member.

Example, a node is cordoned at t=0 and no other is free: the gang saves until t=8, the budget opens,
the gang trains. At t=3600 `kubectl drain` evicts the pod. Its agent makes the gang save again, and
the member waits for a node.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import ledger
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.observed import NodeDisruption
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.failure import give_up_members
from drumline.lifecycle.plan.notices import (
    SAVE_SECONDS,
    announced_incident,
    answer_to,
    request_save,
    save_deadline,
    with_answer,
)
from drumline.lifecycle.plan.protection import protection
from drumline.lifecycle.plan.situation import Situation
from drumline_api.conditions import Reason
from drumline_api.jobstatus import DisruptionStatus, TrainingJobStatus

LAST_SAVE_SECONDS: Final = 60.0
"""Time before the deadline at which members without another node save once more."""
LEAVE_MARGIN_SECONDS: Final = 10.0
"""Time before the grace period at which pods of a template get SIGTERM."""


class Workload(StrEnum):
    """Loss of a job whose members leave a node."""

    SAVES = "Saves"
    """No work is lost, if it is asked to save first.

    The bundled trainer with a checkpoint, or a template's program that acknowledges saves.
    """
    TEMPLATE = "Template"
    """The work that the program does not save at SIGTERM. Any other program of a template."""
    UNSAVED = "Unsaved"
    """All its work, unless peers have its snapshots. The bundled trainer without a checkpoint."""


class Step(StrEnum):
    """Next step for the members of a node disruption."""

    SAVE = "Save"
    """Their agents are asked to save, and the answer is awaited."""
    STAY = "Stay"
    """They continue. A drain may evict them."""
    MOVE_IF_PLACED = "MoveIfPlaced"
    """They continue until the scheduler has another node, or a drain evicts them."""
    LEAVE = "Leave"
    """They give up their nodes now."""


def next_step(workload: Workload, *, certain: bool, saved: bool, late: bool) -> Step:
    """Return the next step of members on a node with an announced end.

    Args:
        workload: loss of the job if they leave.
        certain: whether the end is certain, not only likely.
        saved: whether the request to save is settled: answered, refused, or too old.
        late: whether a certain disruption leaves no more time.
    """
    if certain and late:
        return Step.LEAVE
    if workload is Workload.SAVES:
        return Step.MOVE_IF_PLACED if saved else Step.SAVE
    movable = certain and workload is Workload.TEMPLATE
    return Step.MOVE_IF_PLACED if movable else Step.STAY


def workload_of(situation: Situation) -> Workload:
    """Return the loss of this job if its members leave a node."""
    if situation.saves_on_request:
        return Workload.SAVES
    return Workload.UNSAVED if situation.job.runs_trainer else Workload.TEMPLATE


def leave_nodes(situation: Situation) -> JobPlan | None:
    """Return the next step for members on nodes with an announced end. None: train.

    The gang is complete and runs.
    """
    # Phase 1: compare the announcements with the status. They may have ended or changed.
    disruption = situation.job.status.disruption
    announced = _announced(situation)
    if not announced:
        return _over(situation, disruption)
    affected = {member.index for member, _ in announced}
    status = _announced_status(situation, announced, affected)
    if disruption is None or _has_changed(disruption, status.disruption):
        return JobPlan(status=status)
    # Phase 2: a last save for members that have trained since their first one.
    if _saves_again(situation, disruption):
        status = _announced_status(situation, announced, affected, renewed=True)
        return JobPlan(status=status)
    # Phase 3: the table of the module.
    certain = disruption.deadline is not None
    late = situation.now >= _leave_at(situation, disruption)
    saved = _is_settled(situation, disruption)
    match next_step(workload_of(situation), certain=certain, saved=saved, late=late):
        case Step.LEAVE:
            return JobPlan(status=_left_status(situation, disruption))
        case Step.SAVE:
            return request_save(situation, disruption, leave=False)
        case Step.MOVE_IF_PLACED if not disruption.movable:
            return JobPlan(status=_movable_status(situation, disruption))
        case Step.MOVE_IF_PLACED | Step.STAY:
            return protection(situation, evictable=affected)


def due_at(situation: Situation) -> float | None:
    """Return the time at which time alone changes the next step, or None."""
    disruption = situation.job.status.disruption
    if disruption is None or disruption.deadline is None:
        return None
    leave_at = _leave_at(situation, disruption)
    times = (leave_at - LAST_SAVE_SECONDS, leave_at)
    return min((at for at in times if at > situation.now), default=leave_at)


def evacuated(
    job: Job, *, nodes: Sequence[str], positions: Collection[int], epoch: int, now: float
) -> TrainingJobStatus:
    """Return a new generation with the disrupted members on other nodes.

    A gang of a template without agents restarts as a whole, because it has no partial recovery.

    Args:
        job: the job. Its disruption's members are movable.
        nodes: nodes of the whole gang, by position.
        positions: positions of the members on other nodes.
        epoch: epoch of the leader that writes this.
        now: seconds since the epoch.
    """
    disruption = job.status.disruption
    assert disruption is not None  # noqa: S101 - only members of one are placed elsewhere
    incident = announced_incident(job, disruption, begin=now, failed_step=job.status.step)
    status = ledger.with_incident(job.status, incident)
    return transitions.members_replaced(
        replace(job, status=status),
        nodes=nodes,
        replaced=positions if job.is_supervised else range(len(nodes)),
        epoch=epoch,
        now=now,
    )


def _announced(situation: Situation) -> list[tuple[GangMember, NodeDisruption]]:
    """Return members of the certain disruptions, or of the likely ones if none is certain.

    Members on a node with a likely end do not have to leave with others.
    """
    by_node = {entry.node: entry for entry in situation.observed.node_disruptions}
    members = [
        (member, by_node[member.node])
        for member in situation.gang.members
        if member.node in by_node
    ]
    certain = [(member, entry) for member, entry in members if entry.certain]
    return certain or members


def _over(situation: Situation, disruption: DisruptionStatus | None) -> JobPlan | None:
    """End the disruption: the budget protects all members again, then the notice is over."""
    closing = protection(situation, asks=disruption is not None)
    if closing is not None or disruption is None:
        return closing
    text = f"{disruption.by} has ended: no member has to move"
    status = transitions.disruption_withdrawn(situation.job, message=text, now=situation.now)
    return JobPlan(status=status)


def _leave_at(situation: Situation, disruption: DisruptionStatus) -> float:
    """Return the time at which members without another node leave.

    A template's pods need their grace period. A program that acknowledges saves has half of a short
    notice for that, and SIGTERM gets the remaining half. Otherwise, with a notice of 30 s, a grace
    period of 20 s and the margin, it would never be asked.
    """
    deadline = save_deadline(disruption)
    template = situation.job.spec.template
    if template is None:
        return deadline
    leave_at = deadline - template.termination_grace_period_seconds - LEAVE_MARGIN_SECONDS
    if not situation.saves_on_request:
        return leave_at
    return max(leave_at, (parse_timestamp(disruption.requested_at) + deadline) / 2)


def _saves_again(situation: Situation, disruption: DisruptionStatus) -> bool:
    """Return whether members without another node save a last time, after more training."""
    if disruption.deadline is None or not disruption.movable or not situation.saves_on_request:
        return False
    deadline = parse_timestamp(disruption.deadline)
    due = deadline - LAST_SAVE_SECONDS
    return parse_timestamp(disruption.requested_at) < due <= situation.now < deadline


def _is_settled(situation: Situation, disruption: DisruptionStatus) -> bool:
    answer = answer_to(situation.observed, disruption)
    answered = answer is not None and (answer.step is not None or answer.error != "")
    late = situation.now >= save_deadline(disruption)
    return bool(disruption.movable) or answered or late


def _movable_status(situation: Situation, disruption: DisruptionStatus) -> TrainingJobStatus:
    """Return the status with the saved step. The members may be placed elsewhere now."""
    job, now = situation.job, situation.now
    answer = answer_to(situation.observed, disruption)
    job = replace(job, status=with_answer(job, answer, now=now))
    return transitions.movable(job, message=_outcome(situation, disruption), now=now)


def _left_status(situation: Situation, disruption: DisruptionStatus) -> TrainingJobStatus:
    """Return the status of members that leave, because the deadline is near."""
    job, now = situation.job, situation.now
    answer = answer_to(situation.observed, disruption)
    step = answer.step if answer is not None else None
    status = with_answer(job, answer, now=now)
    incident = announced_incident(job, disruption, begin=now, failed_step=step)
    return give_up_members(
        replace(job, status=ledger.with_incident(status, incident)),
        situation.gang,
        disruption.indices or (),
        reason=Reason.NODE_DISRUPTED,
        message=_outcome(situation, disruption),
        now=now,
    )


def _outcome(situation: Situation, disruption: DisruptionStatus) -> str:
    """Return what is disrupted, and whether the members saved."""
    workload = workload_of(situation)
    if workload is Workload.TEMPLATE:
        return f"{disruption.reason}; its pods get SIGTERM and their grace period"
    answer = answer_to(situation.observed, disruption)
    step = answer.step if answer is not None else None
    if workload is Workload.UNSAVED or step is None:
        return f"{disruption.reason}; the state was not saved in time"
    return f"{disruption.reason}; saved step {step}"


def _has_changed(before: DisruptionStatus, after: DisruptionStatus | None) -> bool:
    """Return whether other members, the deadline or the kind have changed.

    A cordon is often only the first sign of a later disruption.
    """
    if after is None:
        return True
    known = (before.indices, before.deadline, before.kind)
    return known != (after.indices, after.deadline, after.kind)


def _announced_status(
    situation: Situation,
    announced: Sequence[tuple[GangMember, NodeDisruption]],
    affected: Collection[int],
    *,
    renewed: bool = False,
) -> TrainingJobStatus:
    """Return the status that announces the disruption of these members.

    The deadline is the earliest that was ever announced for the affected nodes. The disruption with
    that deadline determines kind and source. A deadline needs a certain disruption.
    Members that have saved are asked again when a likely disruption becomes certain.

    Example at t=0: node-b goes (no deadline) and node-c is reclaimed at t=120. The disruption is
    SpotReclaim of node-c "and 1 more" with deadline t=120. If the reclaim is withdrawn later, the
    deadline stays t=120, because the agents were asked to save by then.
    """
    # Phase 1: the deadline. It never moves back, because the agents have it.
    job, now, known = situation.job, situation.now, situation.job.status.disruption
    likely = not announced[0][1].certain
    earlier = None
    if known is not None and known.deadline is not None and not likely:
        earlier = parse_timestamp(known.deadline)
    default = now + SAVE_SECONDS if earlier is None else earlier
    entries = [entry for _, entry in announced]
    stated = [entry.deadline for entry in entries if entry.deadline is not None]
    deadlines = stated if earlier is None else [*stated, earlier]
    first = min(entries, key=lambda entry: (entry.deadline or default, entry.node))
    deadline = None if likely else min(deadlines, default=default)
    # Phase 2: the message and whether the agents must be asked again.
    left = ""
    if deadline is not None and first.deadline is not None:
        left = f", {max(0, int(deadline - now))} s left"
    more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
    saved = known is not None and bool(known.movable)
    renewed = renewed or (saved and known is not None and known.deadline is None and not likely)
    template = workload_of(situation) is Workload.TEMPLATE
    return transitions.disrupted(
        job,
        kind=first.kind,
        by=first.source,
        message=f"{first.kind} of node {first.node}{more} ({first.source}{left})",
        deadline=deadline,
        indices=affected,
        movable=not likely if template else saved and not renewed,
        renewed=renewed,
        now=now,
    )
