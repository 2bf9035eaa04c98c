"""The cluster a simulation runs on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from drumline.scheduling import Node, Pool, Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes, pools and queues; nothing runs on it yet."""

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    queues: tuple[Queue, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.allocatable.gpus for node in self.nodes)

    def gpus_by_pool(self) -> dict[str, int]:
        """GPUs of each pool."""
        count: Counter[str] = Counter()
        for node in self.nodes:
            count[node.pool] += node.allocatable.gpus
        return dict(count)
