"""Convert an admitted job to the scheduler's value: nodes, reservations, cost of an eviction.

Everything is computed from the newest version of the job, its pods, and the progress that its
agents reported last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from drumline.controller.nodes.nodes import LONGEST_GRACE_SECONDS
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import base_size, lost_positions, members_of
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.roles import scheduling_order
from drumline.lifecycle.model.sizes import may_keep
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.conditions import DisruptionKind, Phase
from drumline_contract import Progress
from drumline_scheduler.model import Admitted, Gang, at_size, parts_of

_EVICTIONS: Final = (DisruptionKind.PREEMPTION, DisruptionKind.QUEUE_STOPPED, DisruptionKind.IDLE)
"""Kinds of disruptions that make a whole job leave."""
RISK_SHARE: Final = 0.1
"""Largest error of the stored work at risk, as a fraction, besides the passed time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPositions:
    """The members of a job in the scheduler's order, for one version of its status."""

    nodes: tuple[str, ...] = ()
    pods: tuple[tuple[int, int], ...] = ()
    """Pod index and pod generation."""
    lost: frozenset[int] = frozenset()
    """Positions of lost members."""
    members: frozenset[tuple[int, int, str]] = frozenset()
    """Pod index, pod generation and node of the positions that are not lost."""

    @property
    def places(self) -> Iterable[tuple[int, int, str]]:
        """Return pod index, pod generation and node by position."""
        return (
            (index, generation, node)
            for (index, generation), node in zip(self.pods, self.nodes, strict=True)
        )

    def has_member(self, pod: PodFacts) -> bool:
        """Return whether this pod represents a member whose position is not lost.

        Drumline creates pods on their node. A pod on another node was made by someone else.
        """
        return (pod.index, pod.generation, pod.node) in self.members


def positions_of(job: Job) -> MemberPositions:
    """Return the members of a job's status. O(members), so cache it for each version."""
    # The status lists members by pod index, the scheduler wants them by role and slice.
    listed, given_up = members_of(job.status), lost_positions(job.status)
    order = scheduling_order(job.spec, range(len(listed)))
    members = [listed[position] for position in order]
    lost = frozenset(place for place, position in enumerate(order) if position in given_up)
    pods = tuple((member.index, member.pod_generation) for member in members)
    return MemberPositions(
        nodes=tuple(member.node for member in members),
        pods=pods,
        lost=lost,
        members=frozenset(
            (member.index, member.pod_generation, member.node)
            for position, member in enumerate(members)
            if position not in lost
        ),
    )


def holds_assignment(job: Job) -> bool:
    """Return whether the job holds its assignment. One of a forbidden size is being released."""
    return (
        job.status.assignment is not None
        and not job.finished
        and (job.unreadable or may_keep(job.spec, job.size))
    )


def admitted_of(
    job: Job,
    *,
    gang: Gang,
    positions: MemberPositions,
    pods: Collection[PodFacts],
    progress: Progress | None,
    now: float,
    leaving_since: float | None = None,
) -> tuple[Admitted, ...]:
    """Return an admitted job as one gang, with its surplus as a second one.

    Args:
        job: the job.
        gang: the job as a waiting gang.
        positions: `positions_of(job)`.
        pods: pods of the job, of all generations.
        progress: progress that its agents reported last, or None.
        now: seconds since the epoch.
        leaving_since: time at which it was first seen to leave, for a status without a deadline.
    """
    # Phase 1: nodes reserved for a move. A job that is suspended or deleted moves nowhere.
    status = job.status
    assert status.assignment is not None  # noqa: S101 - see `holds_assignment`
    leaving = _is_leaving(job)
    nominated = None if job.spec.suspend or job.deleting else status.nominated
    reserved_nodes = nominated.node_names() if nominated else ()
    # Phase 2: the gang as a whole.
    whole = Admitted(
        gang=at_size(gang, job.size),
        pool=status.assignment.gpu_pool,
        assignment=positions.nodes,
        reserved=_reserved(positions, pods),
        lost=positions.lost,
        leaving=leaving,
        departs=_departs(job),
        leaves_by=_leaves_by(job, pods=pods, since=leaving_since),
        preempted_at=tuple(map(parse_timestamp, status.preempted_at or ())),
        admitted_at=parse_timestamp(status.admitted_at) if status.admitted_at else job.created_at,
        ends_at=parse_timestamp(status.expected_end) if status.expected_end else None,
        gpu_seconds_at_risk=gpu_seconds_at_risk(job, progress, now=now),
        giving_up=_giving_up(job, positions),
        displaced=_displaced(job, positions),
        must_move=_must_move(job),
        nominated=_nominated(reserved_nodes, positions, moves=leaving),
        nominated_pool=nominated.gpu_pool if nominated and leaving else "",
    )
    # Phase 3: split off the surplus, which may run in another pool.
    surplus = status.assignment.surplus
    return parts_of(
        whole,
        gang=gang,
        smallest=base_size(status),
        surplus_pool=surplus.gpu_pool if surplus else "",
    )


def gpu_seconds_at_risk(job: Job, progress: Progress | None, *, now: float) -> float:
    """Return the GPU-seconds since the last checkpoint, lost by an eviction without a save.

    It is the number of steps since then at the pace of the last step, but at most the time since
    the start. Without a known pace or step it is that whole time.

    Args:
        job: the job with its present status.
        progress: figures that the agents reported.
        now: Unix time in seconds.
    """
    account = job.status.gpu_seconds
    gpus = job.gpus * (1.0 if account is None else float(account.share))
    started = job.status.started_at or job.status.admitted_at
    whole = max(0.0, now - parse_timestamp(started)) if started else 0.0
    trainer = job.spec.trainer
    if trainer is None or progress is None or not progress.tokens_per_second:
        return whole * gpus
    step_tokens = trainer.global_batch_size * trainer.sequence_length
    saved = job.status.checkpoint.step if job.status.checkpoint else 0
    steps = max(0, progress.step - max(saved, progress.checkpoint_step or 0))
    return min(whole, steps * step_tokens / progress.tokens_per_second) * gpus


def with_risk(held: Admitted, risk: float) -> Admitted:
    """Return the gang with this work at risk. The same object if it hardly differs."""
    if abs(risk - held.gpu_seconds_at_risk) <= RISK_SHARE * held.gpu_seconds_at_risk:
        return held
    return replace(held, gpu_seconds_at_risk=risk)


def _reserved(positions: MemberPositions, pods: Iterable[PodFacts]) -> frozenset[int]:
    """Return positions whose pods are not counted on their nodes: not shown yet, or ended.

    A member that has ended keeps its position until the job gives it up, because the gang may start
    again on the same nodes.
    """
    counted = counted_members(pods)
    if counted.issuperset(positions.members):
        return frozenset()
    return frozenset(
        position
        for position, place in enumerate(positions.places)
        if place not in counted and position not in positions.lost
    )


def counted_members(pods: Iterable[PodFacts]) -> frozenset[tuple[int, int, str]]:
    """Return index, generation and node of the pods that a node's use counts."""
    return frozenset(
        (pod.index, pod.generation, pod.node) for pod in pods if pod.holds_node and not pod.unbound
    )


def _is_leaving(job: Job) -> bool:
    """Return whether the whole gang is evicted, suspended or deleted."""
    disruption = job.status.disruption
    evicted = (
        disruption is not None and disruption.kind in _EVICTIONS and disruption.indices is None
    )
    return evicted or job.spec.suspend or job.deleting


def is_leaving(job: Job) -> bool:
    """Return whether the gang, or a part of it, must leave."""
    disruption = job.status.disruption
    shrinks = disruption is not None and disruption.kind is DisruptionKind.PREEMPTION
    return shrinks or _is_leaving(job)


def _leaves_by(job: Job, *, pods: Collection[PodFacts], since: float | None) -> float | None:
    """Return when it must have left, or None if it stays.

    It is the deadline of its eviction, or the time when it was seen to leave. Pods that are being
    deleted already have their grace period, of up to an hour. The deadline of another disruption,
    such as a maintenance that is days away, says nothing about a suspended or deleted job.
    """
    if not is_leaving(job):
        return None
    disruption, due = job.status.disruption, since
    if disruption is not None and disruption.deadline and disruption.kind in _EVICTIONS:
        due = parse_timestamp(disruption.deadline)
    if due is None:
        return None
    ends = (pod.terminates_by for pod in pods if pod.terminates_by and pod.holds_node)
    return max((due, *(end for end in ends if end <= due + LONGEST_GRACE_SECONDS)))


def _departs(job: Job) -> bool:
    """Return whether it leaves only because its queue is stopped."""
    disruption = job.status.disruption
    stopped = disruption is not None and disruption.kind is DisruptionKind.QUEUE_STOPPED
    return stopped and not (job.spec.suspend or job.deleting)


def _giving_up(job: Job, positions: MemberPositions) -> frozenset[int]:
    """Return positions that an elastic gang must give up for another job."""
    disruption = job.status.disruption
    if disruption is None or disruption.kind is not DisruptionKind.PREEMPTION:
        return frozenset()
    going = frozenset(disruption.indices or ())
    return frozenset(
        position for position, (index, _) in enumerate(positions.pods) if index in going
    )


def _displaced(job: Job, positions: MemberPositions) -> frozenset[int]:
    """Return positions on ending nodes whose members may be placed elsewhere."""
    disruption = job.status.disruption
    if disruption is None or not disruption.movable or job.status.phase is not Phase.RUNNING:
        return frozenset()
    going = frozenset(disruption.indices or ())
    return frozenset(
        position for position, (index, _) in enumerate(positions.pods) if index in going
    )


def _must_move(job: Job) -> bool:
    """Return whether members on ending nodes leave in any case, not only for another node."""
    disruption = job.status.disruption
    return disruption is not None and disruption.deadline is not None


def _nominated(
    nodes: tuple[str, ...], positions: MemberPositions, *, moves: bool
) -> dict[int, str]:
    """Return the nodes reserved for an admitted job: all if it moves, else for lost positions."""
    if moves:
        return dict(enumerate(nodes))
    return {
        position: node
        for position, node in enumerate(nodes)
        if position in positions.lost and node != positions.nodes[position]
    }
