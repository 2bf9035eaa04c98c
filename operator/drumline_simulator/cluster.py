"""The cluster a simulation runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from drumline_scheduler import Node, Pool, Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Nodes of a pool that are there while jobs use them: they boot when a job is given them."""

    boot_seconds: float
    """Median from the ask until a node is ready."""
    boot_spread: float = 0.0
    """Standard deviation of the logarithm of the seconds."""
    missing_share: float = 0.0
    """The part of the asks that bring no node in time, and are made again."""
    retry_seconds: float = 600.0
    """After which such an ask is made again."""
    idle_seconds: float = 600.0
    """How long a node without jobs stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """What a pool's nodes cost, and whether they are always there."""

    price_per_gpu_hour: float = 0.0
    """Its mean, in dollars."""
    price_swing: float = 0.0
    """How far the price of an hour may be from the mean, as a part of it; 0: it is fixed."""
    autoscaling: Autoscaling | None = None
    """None: its nodes are always there, and paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes, pools and queues; nothing runs on it yet."""

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    queues: tuple[Queue, ...]
    terms: Mapping[str, PoolTerms] = field(default_factory=dict[str, PoolTerms])
    """By pool; one that is left out is free and always there."""

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
