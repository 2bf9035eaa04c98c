"""Rule out new nodes that cannot help a gang, before it is tried with them.

A try makes thousands of nodes and decides a cycle with them. A gang may try the offers of many
pools and zones, so each is first checked with the gang's request alone. "No" is certain, "yes" is
not.

Example: a gang of 10,000 pods in a queue with 64 GPUs in pool a and 100,000 in pool b. Pool a
offers nodes in three zones. None of these is tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from drumline_scheduler.autoscaling.node_offers import PoolSizes, nodes_allowed
from drumline_scheduler.model import Gang, NodeOffer, Snapshot
from drumline_scheduler.placement.eligibility import node_filter_of
from drumline_scheduler.resources import NOTHING, Resources

HasQuota = Callable[[Gang, str, int], bool]
"""Returns whether quota allows a gang a number of main pods in a pool."""


class UsefulOffers:
    """The offers that may help each gang.

    Args:
        snapshot: the cluster with its offers.
        sizes: sizes of the pools.
        has_quota: whether quota allows a gang its smallest size.
    """

    def __init__(self, snapshot: Snapshot, *, sizes: PoolSizes, has_quota: HasQuota) -> None:
        self.pods_end = any(node.terminating is not NOTHING for node in snapshot.nodes)
        """True if pods of any node are being deleted."""
        self._has_quota = has_quota
        self._levels = {pool.name: frozenset(pool.levels) for pool in snapshot.pools}
        self._allowed: dict[str, int] = defaultdict(int)
        """Largest number of new nodes of an offer, by pool."""
        self._gpus: dict[str, int] = defaultdict(int)
        """GPUs that a pool can have for new gangs. More than in truth: no reservation counts."""
        self._largest: dict[str, int] = defaultdict(int)
        """Most GPUs of any node that a pool has or can have."""
        self._offers: list[NodeOffer] = []
        for offer in snapshot.offers:
            if allowed := nodes_allowed(offer, sizes):
                gpus = offer.node.allocatable.gpus
                self._offers.append(offer)
                self._allowed[offer.pool] = max(self._allowed[offer.pool], allowed)
                self._gpus[offer.pool] += allowed * gpus
                self._largest[offer.pool] = max(self._largest[offer.pool], gpus)
        for node in snapshot.nodes:
            if node.pool in self._gpus:
                free = node.allocatable.gpus - node.used.gpus + node.terminating.gpus
                self._gpus[node.pool] += max(0, free)
                self._largest[node.pool] = max(self._largest[node.pool], node.allocatable.gpus)
        self._lacking = {
            held.gang.uid: sum(held.gang.request_of(position).gpus for position in held.vacant)
            for held in snapshot.admitted
            if held.vacant
        }
        """GPUs that running gangs lack, by uid."""

    def may_help(self, gang: Gang) -> bool:
        """Return whether there are enough GPUs and large nodes for a gang. Cheap: thousands ask."""
        return any(self._are_large(offer, gang) for offer in self._offers)

    def help_any(self, gang: Gang) -> bool:
        """Return whether new nodes of any offer may help a gang."""
        return any(self.helps(offer, gang) for offer in self._offers)

    def helps(self, offer: NodeOffer, gang: Gang) -> bool:
        """Return whether new nodes of an offer may help a gang."""
        return (
            self._are_large(offer, gang)
            and _names_only(gang, self._levels.get(offer.pool, frozenset()))
            and self._has_quota(gang, offer.pool, gang.legal_sizes[0])
            and node_filter_of(gang).ineligibility(offer.node) is None
        )

    def _are_large(self, offer: NodeOffer, gang: Gang) -> bool:
        """Return whether the pool may have enough GPUs, and a new node holds any of the pods."""
        requests = [gang.per_pod, *(role.per_pod for role in gang.roles)]
        gpus, pool, whole = self._lacking.get(gang.uid), offer.pool, offer.node.allocatable
        if gpus is None:
            gpus = gang.gpus_at(gang.legal_sizes[0])
            if self._largest[pool] < max(request.gpus for request in requests):
                return False
        return gpus <= self._gpus[pool] and any(_fits(request, whole) for request in requests)

    def most_nodes(self, gang: Gang) -> int:
        """Return the largest number of new nodes in a try."""
        return min(gang.nodes + gang.extras, max(self._allowed.values(), default=0))


def _names_only(gang: Gang, levels: frozenset[str]) -> bool:
    """Return whether a gang names no other levels. It cannot be placed in a pool without one."""
    named = (gang.required_level, gang.preferred_level, gang.balanced_level)
    return all(level in levels for level in named if level) and all(
        piece.level in levels for piece in gang.slices
    )


def _fits(request: Resources, whole: Resources) -> bool:
    return request.gpus <= whole.gpus and request.fits_in(whole)
