"""Nodes that an autoscaler can add to a pool, and nodes that were requested from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drumline_scheduler.model.nodes import Node

ZONE_LABEL: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """New nodes of one kind that an autoscaler adds if a gang waits for them.

    A pool may have several offers, such as one for each zone. They are tried in their order.
    """

    node: Node
    """A new node: in service and empty. Its name has no meaning."""
    zone: str = ""
    """Zone of the new nodes. '' leaves the choice to the autoscaler."""
    pool_limit: int
    """Largest number of nodes in the pool, including those that exist."""
    new_limit: int | None = None
    """Smaller limit for gangs that have not requested nodes yet, if recent requests were not met.
    """
    limited_until: float = 0.0
    """End of `new_limit`, in seconds since the epoch."""
    limited_why: str = ""
    """Last message of the autoscaler about nodes that did not come."""

    @property
    def pool(self) -> str:
        """The pool of the new nodes."""
        return self.node.pool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedNodes:
    """Nodes that an earlier cycle requested from an autoscaler for a waiting gang."""

    uid: str
    """Uid of the gang."""
    pool: str
    zone: str = ""
    nodes: int
    """Number of nodes that were missing then."""
