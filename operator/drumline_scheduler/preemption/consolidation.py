"""Consolidation: make room for a waiting gang by moving running gangs closer together.

It is tried before preemption, if the policy allows moves. The waiting gang must have quota, and
enough GPUs must be free, but not where it needs them. Domain and movers are chosen like victims
(`victims`), without a preemption policy, because moves take no quota. Then all movers need other
slots beside the gang's. If a mover finds none, it is excluded and the search is repeated, up to
`MAX_RETRIES` times. Every move of the result is necessary for the gang's start.

Example: two racks of 2 nodes; gang X runs on 1 node of each. A gang of 2 nodes requires one rack.
Two nodes are free, but in different racks. X's pod in rack A is the cheapest to move, so X moves to
rack B as a whole, and the waiting gang gets rack A.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import Gang
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.placement.search import Search, is_exact
from drumline_scheduler.preemption.candidates import Candidates
from drumline_scheduler.preemption.eviction_simulation import (
    NO_POLICY,
    EvictionSimulation,
    EvictionUnit,
)
from drumline_scheduler.preemption.relocation import MoveAllowance, RelocationPlan, relocated
from drumline_scheduler.preemption.victims import least_victims
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.work import is_late

MAX_RETRIES: Final = 4
_WAITS_FOR_ROOM: Final = frozenset(
    {
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidation:
    """Moves of running gangs, and the slots that a waiting gang gets from them."""

    pool: str
    search: Search
    movers: Sequence[EvictionUnit]
    plan: RelocationPlan

    @property
    def cost(self) -> float:
        """GPU-seconds that the movers lose."""
        return sum(unit.cost for unit in self.movers)


class Consolidator:
    """Finds moves that make room for a waiting gang.

    Args:
        projection: current and projected view.
        candidates: gangs that may be evicted or moved.
        budget: moves that are still allowed.
    """

    def __init__(
        self, *, projection: Projection, candidates: Candidates, budget: MoveAllowance
    ) -> None:
        self._projection = projection
        self._candidates = candidates
        self._budget = budget
        self._infeasible: set[Hashable] = set()

    def make_room(self, *, gang: Gang, rejections: Mapping[str, Rejection]) -> Consolidation | None:
        """Return moves that let a gang start, in the first pool that has such moves.

        Args:
            gang: the waiting gang; an elastic gang requests its smallest size.
            rejections: rejections by pool, in the order of trying.
        """
        for pool, rejection in rejections.items():
            if self._budget.gangs > 0 and rejection.reason in _WAITS_FOR_ROOM:
                moves = self._in_pool(gang=gang, pool=pool)
                if moves is not None:
                    self._budget.spend(gangs=len(moves.movers), gpu_seconds=moves.cost)
                    return moves
        return None

    def may_help(self, reasons: Collection[BlockReason]) -> bool:
        """Return whether moves may make room for a gang that is rejected for these reasons."""
        return self._budget.gangs > 0 and not _WAITS_FOR_ROOM.isdisjoint(reasons)

    def forget(self) -> None:
        """Search again for gangs that had no moves, because a gang was evicted or moved."""
        self._infeasible.clear()

    def _in_pool(self, *, gang: Gang, pool: str) -> Consolidation | None:
        size = gang.legal_sizes[0]
        search = self._projection.effective.search(gang=gang, pool=pool, pods=size)
        if isinstance(search, Rejection) or search.question in self._infeasible:
            return None
        if not is_exact(search):  # each mover would cost a search
            return None
        # Cheap tests first: without enough free GPUs or quota, moves cannot help.
        free = sum(max(0, free[0]) for free in search.view.free)
        moves = None
        if free >= gang.gpus_at(size) and self._projection.has_quota(
            gang=gang, pool=pool, size=size
        ):
            moves = self._consolidated(gang=gang, pool=pool, size=size)
        if moves is None:
            self._infeasible.add(search.question)
        return moves

    def _consolidated(self, *, gang: Gang, pool: str, size: int) -> Consolidation | None:
        projected = self._projection.projected
        search = projected.search(gang=gang, pool=pool, pods=size)
        if isinstance(search, Rejection) or search.roomy(search.ids):
            return None
        simulation = EvictionSimulation(search=search, claim=NO_POLICY, gpus=gang.gpus_at(size))
        # Each round excludes a mover without new slots. Choosing the best set of movers with their
        # slots together would be a search over all placements.
        stay: set[str] = set()
        for number in range(MAX_RETRIES):
            if number and is_late(f"moves {gang.uid} {number}"):
                return None
            candidates = [
                unit
                for unit in self._candidates.movable(pool=pool, projected=projected)
                if unit.uid not in stay and unit.cost <= self._budget.gpu_seconds
            ]
            if not candidates:
                return None
            movers = least_victims(
                simulation=simulation, candidates=candidates, split=lambda unit, _: (unit,)
            )
            if not movers or not self._allows(movers):
                return None
            plan = relocated(
                projected=projected, pool=pool, movers=[unit.held for unit in movers], first=search
            )
            if isinstance(plan, RelocationPlan):
                return Consolidation(pool=pool, search=search, movers=movers, plan=plan)
            stay.add(plan.uid)
        return None

    def _allows(self, movers: Sequence[EvictionUnit]) -> bool:
        cost = sum(unit.cost for unit in movers)
        return self._budget.allows(gangs=len(movers), gpu_seconds=cost)
