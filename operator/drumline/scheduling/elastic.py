"""Gangs that can run with fewer pods than they want: what they do about losses and about room.

* A loss for which there is no replacement: the gang goes on with the largest legal size that its
  survivors and what is free can fill, at once. Capacity that it gives up is seen as free in the
  next cycle, when its pods are gone.
* Room: it grows, by new places near its own, where its queue has the quota and no other gang waits
  that could use them. So a gang never grows in front of one that waits.

Its other pods stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline.scheduling.decisions import Resized
from drumline.scheduling.horizon import Horizon
from drumline.scheduling.model import Admitted
from drumline.scheduling.refusals import counted
from drumline.scheduling.seating import Seating, whereabouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizer:
    """Finds other sizes for running elastic gangs."""

    horizon: Horizon
    seating: Seating

    def shrink(self, *, held: Admitted) -> Resized | None:
        """The largest legal size below the present one that can be had now."""
        survivors = [i for i in range(held.size) if i not in held.lost]
        for size in reversed(held.gang.sizes):
            if size >= held.size:
                continue
            kept = survivors[:size]
            added = self._find(held=held, size=size, kept=kept)
            if added is not None:
                return self._resized(held=held, kept=kept, added=added)
        return None

    def grow(self, held: Admitted) -> Resized | None:
        """The largest legal size above the present one that can be had now."""
        gang = held.gang
        for size in reversed(gang.sizes):
            pods = size - held.size
            if pods <= 0:
                return None
            if not self.horizon.has_quota(gang=gang, pool=held.pool, size=size):
                continue
            added = self._find(held=held, size=size, kept=range(held.size))
            if added is not None:
                self.horizon.hold(gang=gang, pool=held.pool, size=size)
                return self._resized(held=held, kept=range(held.size), added=added)
        return None

    def _find(self, *, held: Admitted, size: int, kept: Sequence[int]) -> list[str] | None:
        if size == len(kept):
            return []
        stays = {new: held.assignment[old] for new, old in enumerate(kept)}
        return self.seating.glimpse(gang=held.gang, pool=held.pool, pods=size, kept=stays)

    def _resized(self, *, held: Admitted, kept: Sequence[int], added: list[str]) -> Resized:
        gang, pool = held.gang, held.pool
        positions = range(len(kept), len(kept) + len(added))
        self.horizon.take(gang=gang, pool=pool, nodes=added, positions=positions)
        nodes = [*(held.assignment[index] for index in kept), *added]
        level, domain, where = whereabouts(view=self.horizon.now.views[pool], nodes=nodes)
        verb = "shrinks" if len(nodes) < held.size else "grows"
        return Resized(
            key=gang.key,
            uid=gang.uid,
            pool=pool,
            kept=tuple(kept),
            added=tuple(added),
            level=level,
            domain=domain,
            message=f"{verb} from {held.size} to {len(nodes)} of {counted(gang.nodes, 'pod')},"
            f" {where}",
        )
