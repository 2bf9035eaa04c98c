"""What an admitted job is to the scheduler: its places, what of them is taken, what leaving costs.

Everything here is worked out from the newest version known of the job, its pods, and the figures
its agents told last; nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drumline.api.conditions import DisruptionKind
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import lost_positions, members_of
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.sizes import allowed_sizes
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.scheduling.model import Admitted, Gang
from drumline_trainer.contract import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The members of a job by position, as far as one version of its status says."""

    nodes: tuple[str, ...] = ()
    pods: tuple[tuple[int, int], ...] = ()
    """Index and birth."""
    lost: frozenset[int] = frozenset()
    """Positions that were given up."""

    def stands(self, index: int, birth: int) -> bool:
        """Whether a pod with this index and birth is a member that has its place."""
        member = (index, birth)
        return member in self.pods and self.pods.index(member) not in self.lost


def places_of(job: Job) -> Places:
    """What the job's status says. O(members), so worth keeping while the version stays."""
    members = members_of(job.status)
    return Places(
        nodes=tuple(member.node for member in members),
        pods=tuple((member.index, member.pod_generation) for member in members),
        lost=lost_positions(job.status),
    )


def holds_places(job: Job) -> bool:
    """Whether the job's assignment stands: one of a size it may no more have is being released."""
    return (
        job.status.assignment is not None
        and not job.finished
        and job.size in allowed_sizes(job.spec)
    )


def admitted_of(
    job: Job,
    *,
    gang: Gang,
    places: Places,
    pods: Iterable[PodFacts],
    progress: Progress | None,
    now: float,
) -> Admitted:
    """A job that holds places, as the scheduler sees it.

    Args:
        job: the job.
        gang: the job as one that waits.
        places: `places_of(job)`.
        pods: those of the job, of all births.
        progress: what its agents said last, if anything.
        now: seconds since the epoch.
    """
    status = job.status
    assert status.assignment is not None  # noqa: S101 - see `holds_places`
    leaving = _is_leaving(job)
    promised = None if job.spec.suspend or job.deleting else status.nominated
    return Admitted(
        gang=gang,
        pool=status.assignment.gpu_pool,
        assignment=places.nodes,
        reserved=_reserved(places, pods),
        lost=places.lost,
        leaving=leaving,
        admitted_at=parse_timestamp(status.admitted_at) if status.admitted_at else job.created_at,
        gpu_seconds_at_risk=gpu_seconds_at_risk(job, progress, now=now),
        giving_up=_giving_up(job, places),
        nominated=_nominated(promised.node_names() if promised else (), places, moves=leaving),
        nominated_pool=promised.gpu_pool if promised and leaving else "",
    )


def gpu_seconds_at_risk(job: Job, progress: Progress | None, *, now: float) -> float:
    """GPU-seconds of work since the last verified checkpoint: what leaving unsaved would lose.

    Steps since then at the pace of the last step; the whole time since the start where the pace or
    the step is not known. Never more than that time.
    """
    gpus = job.size * job.spec.gpus_per_node
    started = job.status.started_at or job.status.admitted_at
    whole = max(0.0, now - parse_timestamp(started)) if started else 0.0
    trainer = job.spec.trainer
    if trainer is None or progress is None or not progress.tokens_per_second:
        return whole * gpus
    step_tokens = trainer.global_batch_size * trainer.sequence_length
    saved = job.status.checkpoint.step if job.status.checkpoint else 0
    steps = max(0, progress.step - max(saved, progress.checkpoint_step or 0))
    return min(whole, steps * step_tokens / progress.tokens_per_second) * gpus


def _reserved(places: Places, pods: Iterable[PodFacts]) -> frozenset[int]:
    """Positions whose pods are not in their nodes' use: not shown yet, or ended already.

    A member that has ended gives its place up with the job, not before: its gang may be about to
    start anew right there.
    """
    counted = {(pod.index, pod.generation) for pod in pods if pod.end is None}
    if not places.lost and counted.issuperset(places.pods):
        return frozenset()
    return frozenset(
        position
        for position, member in enumerate(places.pods)
        if member not in counted and position not in places.lost
    )


def _is_leaving(job: Job) -> bool:
    """Whether the whole of it goes."""
    disruption = job.status.disruption
    preempted = disruption is not None and disruption.kind is DisruptionKind.PREEMPTION
    whole = disruption is not None and disruption.indices is None
    return (preempted and whole) or job.spec.suspend or job.deleting


def _giving_up(job: Job, places: Places) -> frozenset[int]:
    """Positions that an elastic gang was told to give to another job."""
    disruption = job.status.disruption
    if disruption is None or disruption.kind is not DisruptionKind.PREEMPTION:
        return frozenset()
    going = frozenset(disruption.indices or ())
    return frozenset(position for position, (index, _) in enumerate(places.pods) if index in going)


def _nominated(promised: tuple[str, ...], places: Places, *, moves: bool) -> dict[int, str]:
    """Nodes that are kept for a job that has places: all of them where it moves, else new ones."""
    if moves:
        return dict(enumerate(promised))
    return {
        position: node
        for position, node in enumerate(promised)
        if position in places.lost and node != places.nodes[position]
    }
