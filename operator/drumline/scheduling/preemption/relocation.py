"""Other places for running gangs that move: all of them find some, or nobody moves.

It is tried on the projected view and undone; whoever wants it so carries the plan out
(`Projection`): the gangs are told to leave, and their new places are kept until they start again
there. All who are on their way at a time stay below one budget. A move changes nothing in what
queues hold; a gang keeps its size, its pool and whatever it requires, and is never spread wider
than it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drumline.scheduling.model import Admitted, Gang, MoveBudget
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.placement.pool_view import PoolView
from drumline.scheduling.placement.projection import Nomination, Projection
from drumline.scheduling.placement.search import Search
from drumline.scheduling.rejections import Rejection
from drumline.scheduling.undo import Undo


@dataclass(slots=True)
class MoveAllowance:
    """What moves may still cost."""

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
        """What those leave who are on their way already; without a budget nothing moves."""
        if moves is None:
            return cls(0, 0.0)
        left = cls(moves.gangs, moves.gpu_seconds)
        for held in admitted:
            if held.leaving and held.nominated:
                left.spend(gangs=1, gpu_seconds=cost(held))
        return left

    def allows(self, *, gangs: int, gpu_seconds: float) -> bool:
        """Whether so much may still be spent."""
        return gangs <= self.gangs and gpu_seconds <= self.gpu_seconds

    def spend(self, *, gangs: int, gpu_seconds: float) -> None:
        """Count what is lost."""
        self.gangs -= gangs
        self.gpu_seconds -= gpu_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """A running gang and where it goes."""

    held: Admitted
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRelocatable:
    """The gang for which no other places were found."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationPlan:
    """Where everybody goes, and the places of the gang that asked for it (none, if nobody did)."""

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
    """Places for gangs of a pool that leave theirs; the cluster view is the same afterwards.

    Args:
        projected: the projected view; it is as before afterwards.
        pool: whose nodes.
        movers: who moves.
        closed: ordinals of nodes on which nobody may land.
        first: a search whose places are taken before anybody else's.
    """
    view, undo = projected.pools[pool], list[Undo]()
    line = sorted(movers, key=_hardest_first)
    widths = {held.gang.uid: _width(view=view, nodes=held.assignment) for held in line}
    try:
        undo += [projected.dismiss(gang=held.gang, pool=pool) for held in line]
        undo.append(view.close(closed))
        nodes: list[str] = []
        if first is not None:
            nodes = first.find() or []
            if not nodes:
                return NotRelocatable(uid=first.gang.uid)
            undo.append(_seat(view=view, gang=first.gang, nodes=nodes))
        found: list[Relocation] = []
        for held in line:
            search = projected.search(gang=held.gang, pool=pool, pods=held.size)
            places = None if isinstance(search, Rejection) else search.find()
            if places is None or _width(view=view, nodes=places) < widths[held.gang.uid]:
                return NotRelocatable(uid=held.gang.uid)
            undo.append(_seat(view=view, gang=held.gang, nodes=places))
            found.append(Relocation(held=held, nodes=tuple(places)))
        return RelocationPlan(relocations=tuple(found), nodes=tuple(nodes))
    finally:
        for step in reversed(undo):
            step()


def carry_out(*, projection: Projection, pool: str, relocations: Iterable[Relocation]) -> None:
    """Count gangs as gone to their new places soon, and keep these."""
    line = list(relocations)
    for one in line:
        projection.dismiss(held=one.held)
    for one in line:
        projection.nominate(Nomination(gang=one.held.gang, pool=pool, nodes=one.nodes))


def _hardest_first(held: Admitted) -> tuple[int, int, str]:
    return (-held.gang.per_pod.gpus, -held.size, held.gang.uid)


def _width(*, view: PoolView, nodes: Sequence[str]) -> int:
    """The depth at which one domain holds all these nodes: the deeper, the nearer together."""
    known = [view.ordinal_of[name] for name in nodes if name in view.ordinal_of]
    return view.tree.common(known)[0] if known else 0


def _seat(*, view: PoolView, gang: Gang, nodes: Sequence[str]) -> Undo:
    return view.occupy(view.holder(gang=gang, nodes=nodes))
