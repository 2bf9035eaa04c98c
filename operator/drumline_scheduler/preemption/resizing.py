"""Resize running elastic gangs.

* Shrink: a gang with lost positions that cannot be filled continues with the largest legal size
  that its remaining pods and free slots can fill. Capacity that it gives up is free in the next
  cycle, when its pods are gone.
* Grow: a gang gets slots near its own, if its queue has the quota and no pending gang could use
  them. So no gang grows before a pending gang.

The other pods stay where they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from drumline_scheduler.decisions import Resized
from drumline_scheduler.model import Admitted
from drumline_scheduler.placement.placer import Placer, whereabouts
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.rejections import counted
from drumline_scheduler.sizes import fitting


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizer:
    """Finds other sizes for running elastic gangs."""

    projection: Projection
    placer: Placer

    def shrink(self, held: Admitted) -> Resized | None:
        """Shrink a gang to the largest legal size below the present one that fits now.

        Only whole slices are kept. A gang that lost a role pod cannot shrink.
        """
        gang = held.gang
        if any(position < gang.extras for position in held.lost):
            return None
        roles, whole = list(range(gang.extras)), _whole_slices(held)

        def kept(size: int) -> list[int]:
            return roles + whole[:size]

        sizes = fitting(
            gang.sizes[: bisect_left(gang.sizes, held.size)],
            fits=lambda size: self._find(held=held, size=size, kept=kept(size)) is not None,
        )
        for size in sizes[-1:]:
            added = self._find(held=held, size=size, kept=kept(size))
            if added is not None:
                return self._resized(held=held, kept=kept(size), added=added)
        return None

    def grow(self, held: Admitted) -> Resized | None:
        """Let a gang grow to the largest legal size above the present one that fits now."""
        gang, kept = held.gang, range(len(held.assignment))

        def fits(size: int) -> bool:
            return (
                self.projection.has_quota(gang=gang, pool=held.pool, size=size)
                and self._find(held=held, size=size, kept=kept) is not None
            )

        sizes = fitting(gang.sizes[bisect_right(gang.sizes, held.size) :], fits=fits)
        for size in sizes[-1:]:
            added = self._find(held=held, size=size, kept=kept)
            if added is not None:
                self.projection.hold(gang=gang, pool=held.pool, size=size)
                return self._resized(held=held, kept=kept, added=added)
        return None

    def _find(self, *, held: Admitted, size: int, kept: Sequence[int]) -> list[str] | None:
        if held.gang.extras + size == len(kept):
            return []
        stays = {new: held.assignment[old] for new, old in enumerate(kept)}
        return self.placer.try_find(gang=held.gang, pool=held.pool, pods=size, kept=stays)

    def _resized(self, *, held: Admitted, kept: Sequence[int], added: list[str]) -> Resized:
        gang, pool = held.gang, held.pool
        positions = range(len(kept), len(kept) + len(added))
        self.projection.take(gang=gang, pool=pool, nodes=added, positions=positions)
        nodes = [*(held.assignment[index] for index in kept), *added]
        level, domain, where = whereabouts(view=self.projection.current.pools[pool], nodes=nodes)
        size = len(nodes) - gang.extras
        verb = "shrinks" if size < held.size else "grows"
        return Resized(
            key=gang.key,
            uid=gang.uid,
            pool=pool,
            kept=tuple(kept),
            added=tuple(added),
            level=level,
            domain=domain,
            message=f"{verb} from {held.size} to {size} of {counted(gang.nodes, 'pod')}, {where}",
        )


def give_up(held: Admitted) -> Resized:
    """Return the decision that ends a surplus gang. The base gang continues alone."""
    return Resized(
        key=held.gang.key,
        uid=held.gang.uid,
        pool=held.pool,
        kept=(),
        added=(),
        message=f"gives up its surplus of {counted(held.size, 'pod')} in pool {held.pool}",
    )


def _whole_slices(held: Admitted) -> list[int]:
    """Return the positions of main pods whose slices have lost no pod, ascending."""
    gang = held.gang
    pods = gang.slices[0].pods if gang.slices else 1
    firsts = range(gang.extras, len(held.assignment), pods)
    slices = [range(first, first + pods) for first in firsts]
    return [i for piece in slices if held.lost.isdisjoint(piece) for i in piece]
