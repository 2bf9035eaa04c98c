"""Relocation: find new slots for running gangs that move. All of them get slots, or none moves.

A plan is found on the projected view, which is unchanged afterwards. Starting its moves evicts the
gangs from the projected view and nominates their new slots until they restart there. All moves in
progress together stay within one budget. A move changes no quota. A gang keeps its size, its pool
and its requirements, and is never spread over a broader domain than before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drumline_scheduler.faults import Stage, deciding
from drumline_scheduler.model import Admitted, Gang, MoveBudget
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.placement.projection import Nomination, Projection
from drumline_scheduler.placement.search import Search
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.undo import Undo


@dataclass(slots=True)
class MoveAllowance:
    """The moves and the lost GPU-seconds that the policy's budget still allows."""

    gangs: int
    gpu_seconds: float

    @classmethod
    def of(
        cls,
        moves: MoveBudget | None,
        *,
        admitted: Iterable[Admitted],
        cost: Callable[[Admitted], float],
    ) -> MoveAllowance:
        """Return the budget without the gangs that already move; None allows no move.

        Args:
            moves: budget of the policy.
            admitted: all running gangs.
            cost: returns the GPU-seconds that moving a gang loses.
        """
        if moves is None:
            return cls(0, 0.0)
        left = cls(moves.gangs, moves.gpu_seconds)
        for held in admitted:
            if held.leaving and held.nominated:
                left.spend(gangs=1, gpu_seconds=cost(held))
        return left

    def allows(self, *, gangs: int, gpu_seconds: float) -> bool:
        """Return whether `gangs` moves with this cost are allowed."""
        return gangs <= self.gangs and gpu_seconds <= self.gpu_seconds

    def spend(self, *, gangs: int, gpu_seconds: float) -> None:
        """Subtract moves from the allowance."""
        self.gangs -= gangs
        self.gpu_seconds -= gpu_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """A running gang and its new nodes by position."""

    held: Admitted
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRelocatable:
    """The gang for which no other slots were found."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationPlan:
    """The new nodes of all gangs that move, and the nodes of the gang for which they make room."""

    relocations: tuple[Relocation, ...]
    nodes: tuple[str, ...] = ()


def relocated(
    *,
    projected: ClusterView,
    pool: str,
    movers: Iterable[Admitted],
    closed: Sequence[int] = (),
    first: Search | None = None,
) -> RelocationPlan | NotRelocatable:
    """Find new slots for gangs of a pool.

    Args:
        projected: the projected view; unchanged afterwards.
        pool: the name of the pool.
        movers: the gangs that move.
        closed: ordinals of nodes that no gang may move to.
        first: a search whose slots are assigned before those of the movers.

    Returns:
        A plan in which every mover has slots, or the first mover without slots.
    """
    view, undo = projected.pools[pool], list[Undo]()
    ordered = sorted(movers, key=_hardest_first)
    depths = {held.gang.uid: _common_depth(view=view, nodes=held.assignment) for held in ordered}
    try:
        # 1. Remove all movers, so that they may use each other's slots, and close excluded nodes.
        undo += [projected.dismiss(gang=held.gang, pool=pool) for held in ordered]
        undo.append(view.close(closed))
        nodes: list[str] = []
        # 2. Slots for the gang that the moves make room for.
        if first is not None:
            nodes = first.find() or []
            if not nodes:
                return NotRelocatable(uid=first.gang.uid)
            undo.append(_assign(view=view, gang=first.gang, nodes=nodes))
        relocations: list[Relocation] = []
        # 3. Slots for the movers, the largest pods first, because they are the hardest to place.
        for held in ordered:
            with deciding(held.gang, Stage.MOVE):
                search = projected.search(gang=held.gang, pool=pool, pods=held.size)
                target = None if isinstance(search, Rejection) else search.find()
                if target is None or _common_depth(view=view, nodes=target) < depths[held.gang.uid]:
                    return NotRelocatable(uid=held.gang.uid)
                undo.append(_assign(view=view, gang=held.gang, nodes=target))
            relocations.append(Relocation(held=held, nodes=tuple(target)))
        return RelocationPlan(relocations=tuple(relocations), nodes=tuple(nodes))
    finally:
        for step in reversed(undo):
            step()


def start_moves(*, projection: Projection, pool: str, relocations: Iterable[Relocation]) -> None:
    """Evict gangs from the projected view and nominate their new nodes.

    Args:
        projection: current and projected view.
        pool: name of the pool.
        relocations: gangs with their new nodes.
    """
    moves = list(relocations)
    for move in moves:
        projection.dismiss(held=move.held)
    for move in moves:
        projection.nominate(Nomination(gang=move.held.gang, pool=pool, nodes=move.nodes))


def _hardest_first(held: Admitted) -> tuple[int, int, str]:
    return (-held.gang.per_pod.gpus, -held.size, held.gang.uid)


def _common_depth(*, view: PoolView, nodes: Sequence[str]) -> int:
    """Return the depth of the narrowest domain with all these nodes.

    Deeper means closer together.
    """
    known = [view.ordinal_of[name] for name in nodes if name in view.ordinal_of]
    return view.tree.common(known)[0] if known else 0


def _assign(*, view: PoolView, gang: Gang, nodes: Sequence[str]) -> Undo:
    return view.occupy(view.allocation(gang=gang, nodes=nodes))
