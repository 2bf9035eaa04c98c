"""What stays free in a pool from now until some moments have passed.

A gang may start in front of those who have reservations if it takes nothing that one of them needs
while it runs. On each node, that is the least that is free at any of these moments; between them
others only leave. A floor is a picture of now in which whatever is above that is withheld, so the
search for places is the same as everywhere, and finds a place that harms nobody whenever there is
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drumline.scheduling.picture import Picture
from drumline.scheduling.timeline import Seat
from drumline.scheduling.view import PoolView, Vector


class Floor:
    """A pool as free as it is at the worst of several moments.

    Args:
        base: the first of them.
        moments: the others.
        pool: which pool; the picture shows no other one.
    """

    def __init__(self, *, base: Picture, moments: Sequence[Picture], pool: str) -> None:
        self._moments = [moment.views[pool] for moment in moments]
        view = base.views[pool].copy()
        self._view, self._later = view, list(view.free)
        self.picture = Picture(views={pool: view}, quota=base.quota)
        view.later = self._later
        self._lower(range(len(self._later)))

    def start(self, seat: Seat) -> None:
        """Count a gang that starts now; whatever moments it touches show it already."""
        holder = self._view.holder(gang=seat.gang, nodes=seat.nodes)
        self._view.occupy(holder)
        self._lower(holder.amounts)

    def _lower(self, ordinals: Iterable[int]) -> None:
        changed: list[int] = []
        for ordinal in ordinals:
            self._later[ordinal] = least = _least(self._moments, ordinal)
            if least is not self._view.free[ordinal]:
                changed.append(ordinal)
        self._view.withhold(changed)


def _least(views: Sequence[PoolView], ordinal: int) -> Vector:
    """The least that is free on a node in any of some views."""
    first, *others = (view.free[ordinal] for view in views)
    for free in others:
        if free is not first:
            first = tuple(map(min, first, free))
    return first
