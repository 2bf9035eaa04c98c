"""An admitted job as the scheduler sees it: its nodes, what is reserved there, what eviction costs.

Everything here is computed from the newest version known of the job, its pods, and the progress its
agents reported last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import base_size, lost_positions, members_of
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.roles import scheduling_order
from drumline.lifecycle.model.sizes import may_keep
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.conditions import DisruptionKind, Phase
from drumline_contract import Progress
from drumline_scheduler.model import Admitted, Gang, at_size, parts_of

RISK_SHARE: Final = 0.1
"""By at most this part of it a known figure of the work at risk is off, beside what has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPositions:
    """The members of a job in the scheduler's order, as far as one version of its status says."""

    nodes: tuple[str, ...] = ()
    pods: tuple[tuple[int, int], ...] = ()
    """Pod index and pod generation."""
    lost: frozenset[int] = frozenset()
    """Positions that were given up."""
    members: frozenset[tuple[int, int, str]] = frozenset()
    """Pod index, pod generation and node of the positions that are not lost."""

    @property
    def places(self) -> Iterable[tuple[int, int, str]]:
        """Pod index, pod generation and node, by position."""
        return (
            (index, generation, node)
            for (index, generation), node in zip(self.pods, self.nodes, strict=True)
        )

    def has_member(self, pod: PodFacts) -> bool:
        """Whether this pod represents a member whose position is not lost.

        Drumline's pods are created on their node: one elsewhere was made by someone else.
        """
        return (pod.index, pod.generation, pod.node) in self.members


def positions_of(job: Job) -> MemberPositions:
    """What the job's status says. O(members), so worth keeping while the version stays."""
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
    """Whether the job's assignment stands: an assignment of a forbidden size is being released."""
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
    pods: Iterable[PodFacts],
    progress: Progress | None,
    now: float,
    leaving_since: float | None = None,
) -> tuple[Admitted, ...]:
    """A job with an assignment, as the scheduler sees it: one gang, and its surplus as another.

    Args:
        job: the job.
        gang: the job as a waiting gang.
        positions: `positions_of(job)`.
        pods: the pods of the job, of all generations.
        progress: what its agents reported last, if anything.
        now: seconds since the epoch.
        leaving_since: since when it was seen to leave, where its status has no deadline.
    """
    status = job.status
    assert status.assignment is not None  # noqa: S101 - see `holds_assignment`
    leaving = _is_leaving(job)
    nominated = None if job.spec.suspend or job.deleting else status.nominated
    reserved_nodes = nominated.node_names() if nominated else ()
    whole = Admitted(
        gang=at_size(gang, job.size),
        pool=status.assignment.gpu_pool,
        assignment=positions.nodes,
        reserved=_reserved(positions, pods),
        lost=positions.lost,
        leaving=leaving,
        departs=_departs(job),
        leaves_by=_leaves_by(job, since=leaving_since),
        preempted_at=tuple(map(parse_timestamp, status.preempted_at or ())),
        admitted_at=parse_timestamp(status.admitted_at) if status.admitted_at else job.created_at,
        ends_at=parse_timestamp(status.expected_end) if status.expected_end else None,
        gpu_seconds_at_risk=gpu_seconds_at_risk(job, progress, now=now),
        giving_up=_giving_up(job, positions),
        displaced=_displaced(job, positions),
        nominated=_nominated(reserved_nodes, positions, moves=leaving),
        nominated_pool=nominated.gpu_pool if nominated and leaving else "",
    )
    surplus = status.assignment.surplus
    return parts_of(
        whole,
        gang=gang,
        smallest=base_size(status),
        surplus_pool=surplus.gpu_pool if surplus else "",
    )


def gpu_seconds_at_risk(job: Job, progress: Progress | None, *, now: float) -> float:
    """GPU-seconds since the last verified checkpoint: what an eviction without a save would lose.

    Steps since then at the pace of the last step; the whole time since the start where the pace or
    the step is not known. Never more than that time.
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
    """The gang with this work at risk; the same object where that hardly differs."""
    if abs(risk - held.gpu_seconds_at_risk) <= RISK_SHARE * held.gpu_seconds_at_risk:
        return held
    return replace(held, gpu_seconds_at_risk=risk)


def _reserved(positions: MemberPositions, pods: Iterable[PodFacts]) -> frozenset[int]:
    """Positions whose pods are not in their nodes' use: not shown yet, or ended already.

    A member that has ended keeps its position until the job gives it up: the gang may be about to
    start again on the same nodes.
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
    """Index, generation and node of the pods that a node's use counts."""
    return frozenset(
        (pod.index, pod.generation, pod.node) for pod in pods if pod.holds_node and not pod.unbound
    )


def _is_leaving(job: Job) -> bool:
    """Whether the whole gang is evicted, suspended or deleted."""
    disruption = job.status.disruption
    kinds = (DisruptionKind.PREEMPTION, DisruptionKind.QUEUE_STOPPED, DisruptionKind.IDLE)
    evicted = disruption is not None and disruption.kind in kinds and disruption.indices is None
    return evicted or job.spec.suspend or job.deleting


def is_leaving(job: Job) -> bool:
    """Whether the gang, or a part of it, is to leave."""
    disruption = job.status.disruption
    shrinks = disruption is not None and disruption.kind is DisruptionKind.PREEMPTION
    return shrinks or _is_leaving(job)


def _leaves_by(job: Job, *, since: float | None) -> float | None:
    """When it should have left: the deadline of its eviction, or when it was seen to leave."""
    if not is_leaving(job):
        return None
    disruption = job.status.disruption
    if disruption is None or disruption.deadline is None:
        return since
    return parse_timestamp(disruption.deadline)


def _departs(job: Job) -> bool:
    """Whether its queue alone says that it leaves."""
    disruption = job.status.disruption
    stopped = disruption is not None and disruption.kind is DisruptionKind.QUEUE_STOPPED
    return stopped and not (job.spec.suspend or job.deleting)


def _giving_up(job: Job, positions: MemberPositions) -> frozenset[int]:
    """Positions that an elastic gang was asked to give up for another job."""
    disruption = job.status.disruption
    if disruption is None or disruption.kind is not DisruptionKind.PREEMPTION:
        return frozenset()
    going = frozenset(disruption.indices or ())
    return frozenset(
        position for position, (index, _) in enumerate(positions.pods) if index in going
    )


def _displaced(job: Job, positions: MemberPositions) -> frozenset[int]:
    """Positions on nodes that are about to go, once their members may be placed elsewhere."""
    disruption = job.status.disruption
    if disruption is None or not disruption.movable or job.status.phase is not Phase.RUNNING:
        return frozenset()
    going = frozenset(disruption.indices or ())
    return frozenset(
        position for position, (index, _) in enumerate(positions.pods) if index in going
    )


def _nominated(
    nodes: tuple[str, ...], positions: MemberPositions, *, moves: bool
) -> dict[int, str]:
    """Nodes reserved for an admitted job: all of them where it moves, else for lost positions."""
    if moves:
        return dict(enumerate(nodes))
    return {
        position: node
        for position, node in enumerate(nodes)
        if position in positions.lost and node != positions.nodes[position]
    }
