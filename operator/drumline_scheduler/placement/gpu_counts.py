"""Count the GPUs of pools, of which quotas may be a percentage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drumline_scheduler.model import Node
from drumline_scheduler.placement.eligibility import out_of_service


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounts:
    """GPUs by pool."""

    healthy: Mapping[str, int] = field(default_factory=dict[str, int])
    """GPUs of nodes that are in service."""
    all: Mapping[str, int] = field(default_factory=dict[str, int])
    """GPUs of all nodes, so also of nodes that are out of service for a while."""

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> GpuCounts:
        """Return the GPUs of these nodes. O(nodes)."""
        healthy, everywhere = Counter[str](), Counter[str]()
        for node in nodes:
            everywhere[node.pool] += node.allocatable.gpus
            healthy[node.pool] += node.allocatable.gpus if out_of_service(node) is None else 0
        return cls(healthy=healthy, all=everywhere)
