"""Move running gangs back to a pool that they prefer.

A gang that names several pools starts in the first that has room. Later, an earlier pool of its
list may have room and quota that no pending gang could use. The gang is then moved there, within
the move budget. It saves, is evicted, and restarts in slots that are reserved for it. It keeps its
size, and the new slots also meet its requirements.

Each move brings a gang closer to its first choice, and no move goes in the other direction. So no
sequence of moves returns to its beginning. O(gangs outside their first pool) searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from drumline_scheduler.decisions import Move, MoveReason
from drumline_scheduler.faults import Stage, deciding
from drumline_scheduler.model import Gang, Queue, order_key
from drumline_scheduler.placement.placer import Placer
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.preemption.candidates import Candidates
from drumline_scheduler.preemption.eviction_simulation import EvictionUnit
from drumline_scheduler.preemption.relocation import MoveAllowance, Relocation, start_moves
from drumline_scheduler.quota.pool_selection import PoolSelector
from drumline_scheduler.rejections import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrator:
    """Finds moves to preferred pools."""

    projection: Projection
    placer: Placer
    candidates: Candidates
    budget: MoveAllowance
    pools: PoolSelector
    queues: Mapping[str, Queue]
    is_wanted: Callable[[Gang, str], bool]
    """Returns whether a pending gang needs capacity that a running gang would take in a pool."""

    def moves_back(self) -> list[Move]:
        """Return the moves of this cycle, in the order of `order_key`."""
        if self.budget.gangs <= 0:
            return []
        moves = (self._move(unit) for unit in sorted(self._outside_first_pool(), key=_turn))
        return [move for move in moves if move is not None]

    def _outside_first_pool(self) -> Iterator[EvictionUnit]:
        """Yield movable gangs that do not run in the first pool of their list."""
        for pool in self.projection.current.pools:
            for unit in self.candidates.movable(pool=pool, projected=self.projection.effective):
                if pool in unit.held.gang.pools[1:]:
                    yield unit

    def _move(self, unit: EvictionUnit) -> Move | None:
        with deciding(unit.held.gang, Stage.MOVE):
            return self._move_of(unit)

    def _move_of(self, unit: EvictionUnit) -> Move | None:
        held, gang = unit.held, unit.held.gang
        if not self.budget.allows(gangs=1, gpu_seconds=unit.cost):
            return None
        for pool in self._preferred(unit):
            nodes = self._slots(gang=gang, pool=pool, size=held.size)
            if nodes is not None:
                relocation = Relocation(held=held, nodes=tuple(nodes))
                # Slots are taken at once, so that later gangs of this cycle
                # do not move to the same slots.
                start_moves(projection=self.projection, pool=pool, relocations=[relocation])
                self.candidates.exclude((gang.uid,))
                self.budget.spend(gangs=1, gpu_seconds=unit.cost)
                return Move(
                    key=gang.key,
                    uid=gang.uid,
                    pool=pool,
                    assignment=relocation.nodes,
                    why=MoveReason.BETTER_POOL,
                    gpu_seconds_lost=unit.cost,
                )
        return None

    def _preferred(self, unit: EvictionUnit) -> list[str]:
        """Return the pools before its own in a gang's list that it may use."""
        gang, queue = unit.held.gang, self.queues.get(unit.held.gang.queue)
        pools = () if queue is None else self.pools.select(gang=gang, queue=queue)
        if isinstance(pools, Rejection):
            return []
        earlier = gang.pools[: gang.pools.index(unit.held.pool)]
        return [pool for pool in pools if pool in earlier]

    def _slots(self, *, gang: Gang, pool: str, size: int) -> list[str] | None:
        if self.is_wanted(gang, pool):
            return None
        if not self.projection.has_quota(gang=gang, pool=pool, size=size):
            return None
        return self.placer.try_find(gang=gang, pool=pool, pods=size)


def _turn(unit: EvictionUnit) -> tuple[int, float, str]:
    return order_key(unit.held.gang)
