"""Moves that free whole domains, while nobody waits for capacity and nothing else is on its way.

At the broadest level at which it is possible (blocks before racks, racks before what is inside
them), used domains are emptied one after the other, the cheapest first: all gangs in it find other
places in domains that are used already. So each domain that is emptied is one free domain more,
none at a broader level becomes used, and no chain of moves can come back to where it began (the
numbers of free domains, broadest level first, only rise). What is lost for it are GPU-seconds,
within the budget.

A domain is free if no gang holds anything there and no GPU is in use. Where a gang sits that may
not be moved, or foreign pods hold GPUs, a domain cannot be emptied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drumline.scheduling.decisions import Move, MoveReason
from drumline.scheduling.placement.pool_view import PoolView
from drumline.scheduling.placement.projection import Projection
from drumline.scheduling.preemption.candidates import Candidates
from drumline.scheduling.preemption.eviction_simulation import EvictionUnit
from drumline.scheduling.preemption.relocation import (
    MoveAllowance,
    RelocationPlan,
    carry_out,
    relocated,
)

MAX_TRIES: Final = 64
"""Domains of one pool that are tried in one cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupiedDomain:
    """All gangs of a domain."""

    identity: int
    parts: Sequence[EvictionUnit]

    @property
    def uids(self) -> set[str]:
        """Who they are."""
        return {one.uid for one in self.parts}

    @property
    def cost(self) -> float:
        """GPU-seconds that are lost if all of them move."""
        return sum(sorted(one.cost for one in self.parts))


class Defragmenter:
    """Looks for domains that can be emptied."""

    def __init__(
        self, *, projection: Projection, candidacy: Candidates, budget: MoveAllowance
    ) -> None:
        self._projection = projection
        self._candidacy = candidacy
        self._budget = budget

    def moves(self, pools: Iterable[str]) -> list[Move]:
        """Moves in some pools that are at rest, by pool and key."""
        return [move for pool in sorted(pools) for move in self._in_pool(pool)]

    def _in_pool(self, pool: str) -> list[Move]:
        if self._budget.gangs <= 0 or not self._projection.is_at_rest(pool):
            return []
        tree = self._projection.current.pools[pool].tree
        for depth in range(1, tree.leaf_depth + 1):
            found = self._at_depth(pool=pool, depth=depth)
            if found:
                return found
        return []

    def _at_depth(self, *, pool: str, depth: int) -> list[Move]:
        view = self._projection.current.pools[pool]
        used = _used(view=view, depth=depth)
        moves: list[Move] = []
        left, landed, moved = set(used), set[int](), set[str]()
        tries = 0
        for crowd in self._crowds(pool=pool, depth=depth, used=used):
            if tries >= MAX_TRIES or len(left) < 2:
                break
            busy = crowd.identity in landed or not moved.isdisjoint(crowd.uids)
            if busy or not self._budget.allows(gangs=len(crowd.parts), gpu_seconds=crowd.cost):
                continue
            tries += 1
            emptied = self._emptied(pool=pool, depth=depth, crowd=crowd, open_to=left)
            if emptied:
                left.discard(crowd.identity)
                moved |= crowd.uids
                landed |= _where(view=view, depth=depth, moves=emptied)
                moves += emptied
        freed = len(used) - len(left)
        return [replace(move, domains_freed=freed) for move in sorted(moves, key=_by_key)]

    def _crowds(self, *, pool: str, depth: int, used: set[int]) -> list[OccupiedDomain]:
        """The domains that could be emptied at all, the cheapest first."""
        view, effective = self._projection.current.pools[pool], self._projection.effective
        domain_of, known = view.tree.domain_of[depth], view.tree.known[depth]
        parts = self._candidacy.movable(pool=pool, projected=effective)
        movable = {one.uid: one for one in parts}
        inside: dict[int, list[EvictionUnit]] = defaultdict(list)
        stuck = {i for i in used if not known[i]} | _foreign(view=view, depth=depth)
        for uid, holder in view.holders.items():
            for identity in {domain_of[ordinal] for ordinal in holder.places}:
                if uid in movable:
                    inside[identity].append(movable[uid])
                else:
                    stuck.add(identity)
        crowds = [
            OccupiedDomain(identity=i, parts=parts) for i, parts in inside.items() if i not in stuck
        ]
        return sorted(crowds, key=lambda crowd: (crowd.cost, crowd.identity))

    def _emptied(
        self, *, pool: str, depth: int, crowd: OccupiedDomain, open_to: set[int]
    ) -> list[Move]:
        """Move everybody out of a domain into some others; nobody if one has nowhere to go."""
        tree = self._projection.current.pools[pool].tree
        targets = open_to - {crowd.identity}
        domain_of = tree.domain_of[depth]
        plan = relocated(
            projected=self._projection.projected,
            pool=pool,
            movers=[one.held for one in crowd.parts],
            closed=[i for i, identity in enumerate(domain_of) if identity not in targets],
        )
        if not isinstance(plan, RelocationPlan):
            return []
        carry_out(projection=self._projection, pool=pool, relocations=plan.relocations)
        self._candidacy.exclude(one.uid for one in crowd.parts)
        self._budget.spend(gangs=len(crowd.parts), gpu_seconds=crowd.cost)
        return [
            Move(
                key=one.held.gang.key,
                uid=one.held.gang.uid,
                pool=pool,
                assignment=one.nodes,
                why=MoveReason.DEFRAGMENTATION,
                gpu_seconds_lost=self._candidacy.moving_costs(one.held),
            )
            for one in plan.relocations
        ]


def _used(*, view: PoolView, depth: int) -> set[int]:
    """Domains in which a gang holds something or GPUs are in use."""
    domain_of = view.tree.domain_of[depth]
    held = (domain_of[i] for holder in view.holders.values() for i in holder.places)
    return {*held, *_foreign(view=view, depth=depth)}


def _foreign(*, view: PoolView, depth: int) -> set[int]:
    """Domains in which pods of no admitted job hold GPUs."""
    domain_of = view.tree.domain_of[depth]
    return {domain_of[i] for i, used in enumerate(view.used) if used[0] > 0}


def _where(*, view: PoolView, depth: int, moves: Iterable[Move]) -> set[int]:
    """Domains in which gangs have new places."""
    domain_of = view.tree.domain_of[depth]
    return {domain_of[view.ordinal_of[name]] for move in moves for name in move.assignment}


def _by_key(move: Move) -> tuple[str, str]:
    return (move.key, move.uid)
