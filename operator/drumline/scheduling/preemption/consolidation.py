"""Room for a waiting gang by moving others together: nobody is sent away, all go on elsewhere.

It is tried before preemption, where the owner allows moves: for a gang that has its quota and for
which there are free GPUs enough, but not where it needs them. Domains and movers are chosen as
victims are (`victims`), the law aside, since a move takes nothing from any queue; then all movers
have to find other places beside the gang. Who finds none stays where it is, and it is tried again
without it, a few times. In the end every move is necessary for the gang's start.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.model import Gang
from drumline.scheduling.placement.projection import Projection
from drumline.scheduling.placement.search import Search
from drumline.scheduling.preemption.candidates import Candidates
from drumline.scheduling.preemption.eviction_simulation import (
    NO_POLICY,
    EvictionSimulation,
    EvictionUnit,
)
from drumline.scheduling.preemption.relocation import MoveAllowance, RelocationPlan, relocated
from drumline.scheduling.preemption.victims import least_victims
from drumline.scheduling.rejections import Rejection

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
    """Who moves where, and the places that a waiting gang has then."""

    pool: str
    search: Search
    movers: Sequence[EvictionUnit]
    plan: RelocationPlan

    @property
    def cost(self) -> float:
        """GPU-seconds that the movers lose."""
        return sum(one.cost for one in self.movers)


class Consolidator:
    """Looks for moves that make room."""

    def __init__(
        self, *, projection: Projection, candidacy: Candidates, budget: MoveAllowance
    ) -> None:
        self._projection = projection
        self._candidacy = candidacy
        self._budget = budget
        self._in_vain: set[Hashable] = set()

    def make_room(self, *, gang: Gang, rejections: Mapping[str, Rejection]) -> Consolidation | None:
        """Moves that let a gang start in the first pool where there are some.

        Args:
            gang: who waits; an elastic one asks for its smallest size.
            rejections: what it waits for, by pool, in the order of trying.
        """
        for pool, rejection in rejections.items():
            if self._budget.gangs > 0 and rejection.reason in _WAITS_FOR_ROOM:
                found = self._in_pool(gang=gang, pool=pool)
                if found is not None:
                    self._budget.spend(gangs=len(found.movers), gpu_seconds=found.cost)
                    return found
        return None

    def forget(self) -> None:
        """Look again: somebody has left or moved."""
        self._in_vain.clear()

    def _in_pool(self, *, gang: Gang, pool: str) -> Consolidation | None:
        size = gang.legal_sizes[0]
        search = self._projection.effective.search(gang=gang, pool=pool, pods=size)
        if isinstance(search, Rejection) or search.question in self._in_vain:
            return None
        free = sum(max(0, free[0]) for free in search.view.free)
        found = None
        if free >= gang.gpus_at(size) and self._projection.has_quota(
            gang=gang, pool=pool, size=size
        ):
            found = self._rearranged(gang=gang, pool=pool, size=size)
        if found is None:
            self._in_vain.add(search.question)
        return found

    def _rearranged(self, *, gang: Gang, pool: str, size: int) -> Consolidation | None:
        projected = self._projection.projected
        search = projected.search(gang=gang, pool=pool, pods=size)
        if isinstance(search, Rejection) or search.roomy(search.ids):
            return None
        trial = EvictionSimulation(search=search, claim=NO_POLICY, gpus=gang.gpus_at(size))
        stay: set[str] = set()
        for _ in range(MAX_RETRIES):
            candidates = [
                one
                for one in self._candidacy.movable(pool=pool, projected=projected)
                if one.uid not in stay and one.cost <= self._budget.gpu_seconds
            ]
            movers = least_victims(trial=trial, candidates=candidates, split=lambda one, _: (one,))
            if not movers or not self._allows(movers):
                return None
            plan = relocated(
                projected=projected, pool=pool, movers=[one.held for one in movers], first=search
            )
            if isinstance(plan, RelocationPlan):
                return Consolidation(pool=pool, search=search, movers=movers, plan=plan)
            stay.add(plan.uid)
        return None

    def _allows(self, movers: Sequence[EvictionUnit]) -> bool:
        cost = sum(one.cost for one in movers)
        return self._budget.allows(gangs=len(movers), gpu_seconds=cost)
