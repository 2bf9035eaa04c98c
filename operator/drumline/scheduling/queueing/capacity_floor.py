"""What stays free in a pool from now until some moments have passed.

A gang may start in front of those who have reservations if it takes nothing that one of them needs
while it runs. On each node, that is the least that is free at any of these moments; between them
others only leave. A floor is a cluster view of now in which whatever is above that is withheld, so
the search for places is the same as everywhere, and finds a place that harms nobody whenever there
is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from drumline.scheduling.placement.allocations import Vector
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.placement.pool_view import PoolView
from drumline.scheduling.queueing.timeline import GangPlacement


class CapacityFloor:
    """A pool as free as it is at the worst of several moments.

    Args:
        base: the first of them.
        moments: the others.
        pool: which pool; the cluster view shows no other one.
    """

    def __init__(self, *, base: ClusterView, moments: Sequence[ClusterView], pool: str) -> None:
        self._moments = [moment.pools[pool] for moment in moments]
        view = base.pools[pool].copy()
        self._view, self._later = view, least(self._moments)
        self.cluster = ClusterView(pools={pool: view}, quota=base.quota)
        view.withheld.limit = self._later
        view.withheld.update(differing(view.free, self._later))

    def start(self, seat: GangPlacement) -> None:
        """Count a gang that starts now; whatever moments it touches show it already."""
        allocation = self._view.allocation(gang=seat.gang, nodes=seat.nodes)
        self._view.occupy(allocation)
        for ordinal in allocation.amounts:
            lowest = self._moments[0].free[ordinal]
            for view in self._moments[1:]:
                lowest = tuple(map(min, lowest, view.free[ordinal]))
            self._later[ordinal] = lowest
        self._view.withheld.update(allocation.amounts)


def least(views: Sequence[PoolView]) -> list[Vector]:
    """By ordinal: what is free in all of some views."""
    found = list(views[-1].free)
    for view in views[-2::-1]:
        found = lower(found, view.free)
    return found


def lower(one: Sequence[Vector], other: Sequence[Vector]) -> list[Vector]:
    """By ordinal the less of both; where they share a value, nothing is done."""
    found = list(one)
    for ordinal in differing(one, other):
        found[ordinal] = tuple(map(min, one[ordinal], other[ordinal]))
    return found


def differing(one: Sequence[Vector], other: Sequence[Vector]) -> list[int]:
    """Where two lists hold other objects."""
    pairs = enumerate(zip(one, other, strict=True))
    return [ordinal for ordinal, (here, there) in pairs if here is not there]
