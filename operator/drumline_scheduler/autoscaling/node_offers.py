"""Choose the new nodes that a gang may request: the pools, their order, and the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from drumline_scheduler.model import AskedNodes, Gang, Node, NodeOffer, Snapshot
from drumline_scheduler.quota.pool_prices import turn_of
from drumline_scheduler.quota.pool_selection import requested_pools
from drumline_scheduler.rejections import counted

MAX_LIMITS: Final = 3
"""Number of pools or zones whose limits a message names."""


class PoolSizes:
    """Number of nodes that each pool has or will have, including those out of service.

    Nodes that are being set up count as requested nodes, up to the number of these.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._there: Counter[str] = Counter()
        self._starting: Counter[str] = Counter()
        for node in nodes:
            (self._starting if node.starting else self._there)[node.pool] += 1
        self._asked: Counter[str] = Counter()

    def ask(self, pool: str, nodes: int) -> None:
        """Add requested nodes."""
        self._asked[pool] += nodes

    def final(self, pool: str) -> int:
        """Return the size of the pool once all nodes are there."""
        # Nodes that start may be the requested ones or others, so the larger number counts.
        return self._there[pool] + max(self._starting[pool], self._asked[pool])

    def without_starting(self, pool: str) -> int:
        """Return the size of the pool if nodes being set up are part of the requested ones."""
        return self._there[pool] + self._asked[pool]

    def starting(self, pool: str) -> int:
        """Return the number of nodes that are being set up."""
        return self._starting[pool]


def requested_offer(
    asked: AskedNodes, offers: Iterable[NodeOffer], *, gang: Gang
) -> Iterator[tuple[NodeOffer, int]]:
    """Yield the offer of an open request, with the number of requested nodes.

    Args:
        asked: the open request.
        offers: nodes that the gang's pools can add.
        gang: the gang that made the request.
    """
    for offer in offers:
        if (offer.pool, offer.zone) == (asked.pool, asked.zone):
            yield offer, min(gang.nodes + gang.extras, asked.nodes)


def offers_by_cost(gang: Gang, snapshot: Snapshot) -> Sequence[NodeOffer]:
    """Return the offers in the order of cost, like the pools of a gang that names none."""
    queue = next((queue for queue in snapshot.queues if queue.name == gang.queue), None)
    if queue is None:
        return ()
    pools = {pool.name: pool for pool in snapshot.pools}
    known = [offer for offer in snapshot.offers if offer.pool in pools]
    return sorted(known, key=lambda offer: turn_of(pools[offer.pool], gang=gang, queue=queue))


def offers_for(
    gang: Gang, offers: Iterable[NodeOffer], *, sizes: PoolSizes
) -> Iterator[tuple[NodeOffer, int]]:
    """Yield the offers that a gang may use, in the order of trying, with the most nodes of each.

    Args:
        gang: the gang.
        offers: offers in the order of cost.
        sizes: sizes of the pools, with nodes requested so far.
    """
    wished, pods = requested_pools(gang), gang.nodes + gang.extras
    # A gang that names pools takes them in its own order, otherwise the order of cost is kept.
    ranks = {pool: rank for rank, pool in enumerate(wished)}
    open_offers = [offer for offer in offers if not wished or offer.pool in ranks]
    for offer in sorted(open_offers, key=lambda each: ranks.get(each.pool, 0)):
        most = min(pods, nodes_allowed(offer, sizes))
        if most:
            yield offer, most


def nodes_allowed(offer: NodeOffer, sizes: PoolSizes) -> int:
    """Return the number of nodes that a gang without an open request may request."""
    limits = [each for each in (offer.pool_limit, offer.new_limit) if each is not None]
    return max(0, min(limits) - sizes.final(offer.pool))


def limits_text(gang: Gang, snapshot: Snapshot, *, sizes: PoolSizes) -> str:
    """Return why pools that may grow cannot add a node for each pod; '' if one of them can.

    An administrator looks for a text like `pool h100 can grow to 32 nodes at most (maxNodes)`.

    Args:
        gang: a gang that gets no nodes.
        snapshot: the cluster with its pools.
        sizes: present and requested nodes of each pool.
    """
    wished, pods = requested_pools(gang), gang.nodes + gang.extras
    limits: list[str] = []
    for offer in offers_by_cost(gang, snapshot):
        if wished and offer.pool not in wished:
            continue
        if nodes_allowed(offer, sizes) >= pods:
            return ""
        limits.append(_limit_text(offer, pods=pods, sizes=sizes))
    return "; ".join(limits[:MAX_LIMITS])


def _limit_text(offer: NodeOffer, *, pods: int, sizes: PoolSizes) -> str:
    where = f"pool {offer.pool}" + (f" in {offer.zone}" if offer.zone else "")
    if offer.new_limit is None or offer.pool_limit - sizes.final(offer.pool) < pods:
        return f"{where} can grow to {counted(offer.pool_limit, 'node')} at most (maxNodes)"
    until = datetime.fromtimestamp(offer.limited_until, tz=UTC).strftime("%H:%M:%S UTC")
    why = f" ({offer.limited_why})" if offer.limited_why else ""
    return (
        f"{where} recently did not reach {counted(offer.new_limit + 1, 'node')}{why} and is"
        f" requested to grow again from {until} on"
    )
