"""The capacity of a pool that stays free from now on until several later times have passed.

A gang may start before reserved gangs if it takes nothing that they need while it runs. On each
node this is the least free capacity at any of their starts, because between these times gangs only
end. A floor is a view of the present in which everything above this amount is withheld. So the
ordinary search finds slots that delay no reservation whenever there are such slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.queueing.expected_ends import GangPlacement


class CapacityFloor:
    """A pool with the least capacity that it has at any of several times.

    Args:
        base: the current view.
        later: views of the later times.
        pool: name of the pool; `cluster` has no other pool.
    """

    def __init__(self, *, base: ClusterView, later: Sequence[ClusterView], pool: str) -> None:
        self._later = [cluster.pools[pool] for cluster in later]
        self._view = view = base.pools[pool].copy()
        self._least = least(self._later)
        self.cluster = ClusterView(pools={pool: view}, quota=base.quota)
        view.withheld.limit = self._least
        view.withheld.update(differing(view.free, self._least))

    def start(self, placement: GangPlacement) -> None:
        """Add a gang that starts now. The later views in which it runs already have it."""
        allocation = self._view.allocation(gang=placement.gang, nodes=placement.nodes)
        self._view.occupy(allocation)
        for ordinal in allocation.amounts:
            lowest = self._later[0].free[ordinal]
            for view in self._later[1:]:
                lowest = tuple(map(min, lowest, view.free[ordinal]))
            self._least[ordinal] = lowest
        self._view.withheld.update(allocation.amounts)


def least(views: Sequence[PoolView]) -> list[Vector]:
    """Return the amounts that are free in all of these views, by ordinal."""
    lowest = list(views[-1].free)
    # From the last view back, so that `lower` meets many identical objects:
    # views share unchanged nodes.
    for view in views[-2::-1]:
        lowest = lower(lowest, view.free)
    return lowest


def lower(first: Sequence[Vector], second: Sequence[Vector]) -> list[Vector]:
    """Return the smaller amounts of both, by ordinal.

    Only ordinals with different objects are computed.
    """
    lowest = list(first)
    for ordinal in differing(first, second):
        lowest[ordinal] = tuple(map(min, first[ordinal], second[ordinal]))
    return lowest


def differing(first: Sequence[Vector], second: Sequence[Vector]) -> list[int]:
    """Return the ordinals at which two lists have different objects."""
    pairs = enumerate(zip(first, second, strict=True))
    return [ordinal for ordinal, (here, there) in pairs if here is not there]
