"""Nodes that an autoscaler can add to a pool, and those that it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drumline_scheduler.model.nodes import Node

ZONE_LABEL: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """New nodes of one kind that an autoscaler adds when a gang waits for them.

    A pool may have several offers, one a zone; they are tried in their order.
    """

    node: Node
    """What a new one is like: in service and empty. Its name stands for nothing."""
    zone: str = ""
    """Where they come; '' where the autoscaler chooses."""
    pool_limit: int
    """The most nodes that the pool may have with them, the present ones counted."""
    new_limit: int | None = None
    """Fewer, for gangs that have not asked yet: the pool did not get that many lately."""
    limited_until: float = 0.0
    """Until when that holds, in seconds since the epoch."""
    limited_why: str = ""
    """What the autoscaler said last of nodes that did not come."""

    @property
    def pool(self) -> str:
        """The pool that the new nodes are in."""
        return self.node.pool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedNodes:
    """What an autoscaler was asked for on behalf of a gang that waits, in an earlier cycle."""

    uid: str
    """Of the gang."""
    pool: str
    zone: str = ""
    nodes: int
    """How many nodes were missing then."""
