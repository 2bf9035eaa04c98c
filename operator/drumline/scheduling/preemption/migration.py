"""Moves of running gangs back to a pool that they would rather have.

A gang that names several pools starts in the first that has room. When there is room in one it
names earlier, and quota for it there, and nobody waits who could use either, it is asked to move,
within the budget of moves: it saves, leaves, and starts again in places that are kept for
it. It keeps its size, and whatever it requires holds in the new places too.

Each move brings a gang nearer to its first choice, and none is ever made the other way, so no chain
of them comes back to where it began. O(gangs that are not in their first pool) looks for places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from drumline.scheduling.decisions import Move, MoveReason
from drumline.scheduling.model import Gang, Queue
from drumline.scheduling.placement.placer import Placer
from drumline.scheduling.placement.projection import Projection
from drumline.scheduling.preemption.candidates import Candidates
from drumline.scheduling.preemption.eviction_simulation import EvictionUnit
from drumline.scheduling.preemption.relocation import MoveAllowance, Relocation, carry_out
from drumline.scheduling.quota.ordering import order_key
from drumline.scheduling.quota.pool_selection import PoolSelector
from drumline.scheduling.rejections import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrator:
    """Looks for better pools."""

    projection: Projection
    placer: Placer
    candidacy: Candidates
    budget: MoveAllowance
    pools: PoolSelector
    queues: Mapping[str, Queue]
    is_wanted: Callable[[Gang, str], bool]
    """Whether somebody waits for what a running gang would take in a pool."""

    def moves_back(self) -> list[Move]:
        """Moves of this cycle, in the order of `order_key`."""
        if self.budget.gangs <= 0:
            return []
        moves = (self._move(one) for one in sorted(self._elsewhere(), key=_turn))
        return [move for move in moves if move is not None]

    def _elsewhere(self) -> Iterator[EvictionUnit]:
        """Gangs that may move and do not run in the first pool that they name."""
        for pool in self.projection.current.pools:
            for part in self.candidacy.movable(pool=pool, projected=self.projection.effective):
                if pool in part.held.gang.pools[1:]:
                    yield part

    def _move(self, part: EvictionUnit) -> Move | None:
        held, gang = part.held, part.held.gang
        if not self.budget.allows(gangs=1, gpu_seconds=part.cost):
            return None
        for pool in self._better(part):
            nodes = self._places(gang=gang, pool=pool, size=held.size)
            if nodes is not None:
                relocation = Relocation(held=held, nodes=tuple(nodes))
                carry_out(projection=self.projection, pool=pool, relocations=[relocation])
                self.candidacy.exclude((gang.uid,))
                self.budget.spend(gangs=1, gpu_seconds=part.cost)
                return Move(
                    key=gang.key,
                    uid=gang.uid,
                    pool=pool,
                    assignment=relocation.nodes,
                    why=MoveReason.BETTER_POOL,
                    gpu_seconds_lost=part.cost,
                )
        return None

    def _better(self, part: EvictionUnit) -> list[str]:
        """The pools that a gang would rather have than its own, as far as it may use them."""
        gang, queue = part.held.gang, self.queues.get(part.held.gang.queue)
        pools = () if queue is None else self.pools.of(gang=gang, queue=queue)
        if isinstance(pools, Rejection):
            return []
        earlier = gang.pools[: gang.pools.index(part.held.pool)]
        return [pool for pool in pools if pool in earlier]

    def _places(self, *, gang: Gang, pool: str, size: int) -> list[str] | None:
        if self.is_wanted(gang, pool):
            return None
        if not self.projection.has_quota(gang=gang, pool=pool, size=size):
            return None
        return self.placer.glimpse(gang=gang, pool=pool, pods=size)


def _turn(part: EvictionUnit) -> tuple[int, float, str]:
    return order_key(part.held.gang)
