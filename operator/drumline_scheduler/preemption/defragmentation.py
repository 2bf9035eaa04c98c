"""Defragmentation: moves that free whole domains while no gang is pending or leaving in the pool.

At the broadest level where it is possible (blocks before racks, racks before their hosts), used
domains are emptied one after the other, the cheapest first. All gangs of a domain move to domains
that are used already. So each emptied domain adds one free domain, and no domain of a broader level
becomes used. No sequence of moves returns to its beginning. The numbers of free domains, compared
from the broadest level on, only rise. The lost GPU-seconds stay within the move budget.

A domain is free if no gang has pods there and no GPU is in use. A domain with a gang that must not
be moved, or with GPUs of foreign pods, cannot be emptied.

Example: four racks of 4 nodes; gangs use 1 node of rack A, 1 of B and 4 of C, D is free. A and B
can be emptied, A first: its gang moves to B, because D is free and C is full. Now 2 racks are free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drumline_scheduler.decisions import Move, MoveReason
from drumline_scheduler.model import Gang
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.preemption.candidates import Candidates
from drumline_scheduler.preemption.eviction_simulation import EvictionUnit
from drumline_scheduler.preemption.relocation import (
    MoveAllowance,
    RelocationPlan,
    relocated,
    start_moves,
)

MAX_TRIES: Final = 64
"""Largest number of domains of a pool that are tried in one cycle."""
MAX_UNITS: Final = 128
"""Units of the searches for the gangs of these domains. A domain whose gangs cost more is not
emptied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupiedDomain:
    """All gangs of a domain."""

    identity: int
    units: Sequence[EvictionUnit]

    @property
    def uids(self) -> set[str]:
        """Uids of the gangs."""
        return {unit.uid for unit in self.units}

    @property
    def cost(self) -> float:
        """GPU-seconds that are lost if all its gangs move."""
        return sum(sorted(unit.cost for unit in self.units))


class Defragmenter:
    """Finds domains that can be emptied.

    Args:
        projection: current and projected view.
        candidates: gangs that may be evicted or moved.
        budget: moves that are still allowed.
        cost_of: units of one search for a gang.
    """

    def __init__(
        self,
        *,
        projection: Projection,
        candidates: Candidates,
        budget: MoveAllowance,
        cost_of: Callable[[Gang], int],
    ) -> None:
        self._cost_of = cost_of
        self._projection = projection
        self._candidates = candidates
        self._budget = budget

    def moves(self, pools: Iterable[str]) -> list[Move]:
        """Return moves in pools that are at rest, by pool and key."""
        return [move for pool in sorted(pools) for move in self._in_pool(pool)]

    def _in_pool(self, pool: str) -> list[Move]:
        if self._budget.gangs <= 0 or not self._projection.is_at_rest(pool):
            return []
        tree = self._projection.current.pools[pool].tree
        for depth in range(1, tree.leaf_depth + 1):
            moves = self._at_depth(pool=pool, depth=depth)
            if moves:
                return moves
        return []

    def _at_depth(self, *, pool: str, depth: int) -> list[Move]:
        view = self._projection.current.pools[pool]
        used = _used(view=view, depth=depth)
        moves: list[Move] = []
        # Domains that are still used; domains that gangs were moved to; uids of moved gangs.
        left, targets, moved = set(used), set[int](), set[str]()
        tries = units = 0
        for domain in self._movable_domains(pool=pool, depth=depth, used=used):
            if tries >= MAX_TRIES or len(left) < 2:
                break
            # A domain that received gangs, or that shares a gang with an emptied one, has changed
            # since its cost was computed. It waits for the next cycle.
            changed = domain.identity in targets or not moved.isdisjoint(domain.uids)
            if changed or not self._budget.allows(gangs=len(domain.units), gpu_seconds=domain.cost):
                continue
            cost = sum(self._cost_of(unit.held.gang) for unit in domain.units)
            if units + cost > MAX_UNITS:
                continue
            tries, units = tries + 1, units + cost
            emptied = self._emptied(pool=pool, depth=depth, domain=domain, open_to=left)
            if emptied:
                left.discard(domain.identity)
                moved |= domain.uids
                targets |= _targets(view=view, depth=depth, moves=emptied)
                moves += emptied
        freed = len(used) - len(left)
        return [replace(move, domains_freed=freed) for move in sorted(moves, key=_by_key)]

    def _movable_domains(self, *, pool: str, depth: int, used: set[int]) -> list[OccupiedDomain]:
        """Return the domains that could be emptied, the cheapest first."""
        view, effective = self._projection.current.pools[pool], self._projection.effective
        domain_of, known = view.tree.domain_of[depth], view.tree.known[depth]
        units = self._candidates.movable(pool=pool, projected=effective)
        movable = {unit.uid: unit for unit in units}
        inside: dict[int, list[EvictionUnit]] = defaultdict(list)
        # A nameless domain is not one place in the network, so emptying it frees no domain.
        stuck = {i for i in used if not known[i]} | _foreign(view=view, depth=depth)
        for uid, allocation in view.allocations.items():
            for identity in {domain_of[ordinal] for ordinal in allocation.places}:
                if uid in movable:
                    inside[identity].append(movable[uid])
                else:
                    stuck.add(identity)
        domains = [
            OccupiedDomain(identity=i, units=units) for i, units in inside.items() if i not in stuck
        ]
        return sorted(domains, key=lambda domain: (domain.cost, domain.identity))

    def _emptied(
        self, *, pool: str, depth: int, domain: OccupiedDomain, open_to: set[int]
    ) -> list[Move]:
        """Move all gangs of a domain to the domains `open_to`; no moves if one gang cannot move."""
        tree = self._projection.current.pools[pool].tree
        targets = open_to - {domain.identity}
        domain_of = tree.domain_of[depth]
        # All nodes outside of the targets are closed, so gangs move only into used domains.
        plan = relocated(
            projected=self._projection.projected,
            pool=pool,
            movers=[unit.held for unit in domain.units],
            closed=[i for i, identity in enumerate(domain_of) if identity not in targets],
        )
        if not isinstance(plan, RelocationPlan):
            return []
        # The gangs move. They are no longer candidates, and the budget shrinks.
        start_moves(projection=self._projection, pool=pool, relocations=plan.relocations)
        self._candidates.exclude(unit.uid for unit in domain.units)
        self._budget.spend(gangs=len(domain.units), gpu_seconds=domain.cost)
        return [
            Move(
                key=move.held.gang.key,
                uid=move.held.gang.uid,
                pool=pool,
                assignment=move.nodes,
                why=MoveReason.DEFRAGMENTATION,
                gpu_seconds_lost=self._candidates.moving_costs(move.held),
            )
            for move in plan.relocations
        ]


def _used(*, view: PoolView, depth: int) -> set[int]:
    """Return the domains with pods of a gang or with GPUs in use."""
    domain_of = view.tree.domain_of[depth]
    held = (domain_of[i] for allocation in view.allocations.values() for i in allocation.places)
    return {*held, *_foreign(view=view, depth=depth)}


def _foreign(*, view: PoolView, depth: int) -> set[int]:
    """Return the domains with GPUs that are used by pods of no admitted job."""
    domain_of = view.tree.domain_of[depth]
    return {domain_of[i] for i, used in enumerate(view.used) if used[0] > 0}


def _targets(*, view: PoolView, depth: int, moves: Iterable[Move]) -> set[int]:
    """Return the domains that gangs are moved to."""
    domain_of = view.tree.domain_of[depth]
    return {domain_of[view.ordinal_of[name]] for move in moves for name in move.assignment}


def _by_key(move: Move) -> tuple[str, str]:
    return (move.key, move.uid)
