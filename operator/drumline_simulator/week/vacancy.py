"""Find out why GPUs were vacant although jobs waited, by watching the cycles of a side.

The state after a cycle holds until the next one. Each pool is looked at alone, because no job of
the week uses two. Nodes that are about to go or are kept come first. If a waiting job fits into the
rest, all of it is vacant for lack of quota, or for another reason. If none fits, whole nodes and
parts of nodes count separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from drumline_scheduler import CycleInput, Decisions, Gang, Node
from drumline_simulator.engine.simulation import Decider


class Vacancy(StrEnum):
    """Reasons for a vacant GPU. The values are names in tables."""

    CLOSED = "node about to go"
    KEPT = "kept for a preemptor"
    QUOTA = "quota"
    PARTS = "parts of nodes, too small for any waiting job"
    WHOLE = "whole nodes, fewer than any waiting job needs"
    FITS = "fits, but not started"


@dataclass(slots=True)
class VacancyWatch:
    """A decider that also counts vacant GPU-seconds by cause.

    Attributes:
        decider: decides.
        gpu_seconds: vacant GPU-seconds while jobs waited, by cause.
    """

    decider: Decider
    gpu_seconds: dict[Vacancy, float] = field(default_factory=dict[Vacancy, float])
    _since: float = 0.0
    _vacant: Mapping[Vacancy, float] = field(default_factory=dict[Vacancy, float])

    def __call__(self, cycle: CycleInput) -> Decisions:
        """Count the time since the last cycle, then decide."""
        for cause, gpus in self._vacant.items():
            before = self.gpu_seconds.get(cause, 0.0)
            self.gpu_seconds[cause] = before + gpus * (cycle.now - self._since)
        decisions = self.decider(cycle)
        self._since, self._vacant = cycle.now, vacant(cycle, decisions)
        return decisions


def vacant(cycle: CycleInput, decisions: Decisions) -> dict[Vacancy, float]:
    """Return the vacant GPUs after a cycle by cause. Empty if no job waits.

    Args:
        cycle: the cycle.
        decisions: its decisions.
    """
    state = _AfterCycle(cycle, decisions)
    gpus_by_cause = Counter[Vacancy]()
    for pool in {node.pool for node in cycle.snapshot.nodes}:
        gpus_by_cause += state.vacant_in(pool)
    # More than all waiting jobs want is not vacant because of the scheduler.
    scale = min(1.0, state.wanted / max(1, gpus_by_cause.total()))
    return {cause: gpus * scale for cause, gpus in gpus_by_cause.items()}


class _AfterCycle:
    """Free GPUs by node, free quota by pool, and the jobs that wait after a cycle."""

    def __init__(self, cycle: CycleInput, decisions: Decisions) -> None:
        snapshot = cycle.snapshot
        placed = {each.uid: each for each in decisions.placed}
        waiting = [gang for gang in cycle.pending if gang.uid not in placed]
        self.wanted = sum(gang.gpus for gang in waiting)
        """GPUs of all waiting jobs."""
        # GPUs of a pod and number of pods: many jobs have the same.
        self._shapes = {(gang.per_pod.gpus, gang.legal_sizes[0]) for gang in waiting}
        self._nodes = snapshot.nodes
        self._free = {node.name: node.allocatable.gpus for node in snapshot.nodes}
        self._quota = Counter[str]()
        for queue in snapshot.queues:
            self._quota.update(queue.nominal)
        for held in snapshot.admitted:
            # A job that is asked to leave a node holds as many GPUs here as there.
            other = placed.get(held.gang.uid) if held.lost else None
            self._take(held.gang, dict(enumerate(other.assignment)) if other else held.survivors)
            self._quota[held.pool] -= held.gpus
        for gang in cycle.pending:
            start = placed.get(gang.uid)
            if start is not None:
                self._take(gang, dict(enumerate(start.assignment)))
                self._quota[start.pool] -= gang.gpus_at(len(start.assignment))
        self._kept = _kept(cycle, decisions)

    def _take(self, gang: Gang, places: Mapping[int, str]) -> None:
        for position, name in places.items():
            self._free[name] -= gang.request_of(position).gpus

    def vacant_in(self, pool: str) -> Counter[Vacancy]:
        """Return the vacant GPUs of a pool by cause."""
        nodes = [node for node in self._nodes if node.pool == pool and node.ready]
        kept = [node for node in nodes if not node.closed and node.name in self._kept]
        usable = [node for node in nodes if not node.closed and node.name not in self._kept]
        causes = Counter[Vacancy]()
        causes[Vacancy.CLOSED] = self._sum(node for node in nodes if node.closed)
        causes[Vacancy.KEPT] = self._sum(kept)
        fitting = [
            gpus * pods
            for gpus, pods in self._shapes
            if sum(self._free[node.name] // gpus for node in usable) >= pods
        ]
        if fitting:
            has_quota = min(fitting) <= self._quota[pool]
            causes[Vacancy.FITS if has_quota else Vacancy.QUOTA] = self._sum(usable)
        else:
            whole = [each for each in usable if self._free[each.name] == each.allocatable.gpus]
            causes[Vacancy.WHOLE] = self._sum(whole)
            causes[Vacancy.PARTS] = self._sum(usable) - causes[Vacancy.WHOLE]
        return causes

    def _sum(self, nodes: Iterable[Node]) -> int:
        return sum(self._free[node.name] for node in nodes)


def _kept(cycle: CycleInput, decisions: Decisions) -> set[str]:
    """Return the nodes that are kept for preemptors, moves and repairs."""
    kept = {name for each in decisions.preemptions for name in each.assignment}
    kept.update(name for gang in cycle.pending for name in gang.nominated)
    kept.update(name for held in cycle.snapshot.admitted for name in held.nominated.values())
    return kept
