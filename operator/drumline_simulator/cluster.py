"""Define the cluster of a simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from drumline_scheduler import Node, Pool, Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """Nodes of a pool that exist only while jobs use them.

    They boot when a job is assigned to them.
    """

    boot_seconds: float
    """Median seconds from the request until a node is ready."""
    boot_spread: float = 0.0
    """Standard deviation of the logarithm of the seconds."""
    missing_share: float = 0.0
    """Share of requests that bring no node in time and are repeated."""
    retry_seconds: float = 600.0
    """Seconds after which such a request is repeated."""
    idle_seconds: float = 600.0
    """Seconds for which an idle node stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """Price of a pool's nodes, and whether they always exist."""

    price_per_gpu_hour: float = 0.0
    """Mean price, in dollars."""
    price_swing: float = 0.0
    """Maximum deviation of an hour's price from the mean, as a fraction. 0: fixed price."""
    autoscaling: Autoscaling | None = None
    """None: its nodes always exist and are always paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes, pools and queues, without running jobs."""

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    queues: tuple[Queue, ...]
    terms: Mapping[str, PoolTerms] = field(default_factory=dict[str, PoolTerms])
    """Terms by pool. A missing pool is free and always exists."""

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all nodes."""
        return sum(node.allocatable.gpus for node in self.nodes)

    def gpus_by_pool(self) -> dict[str, int]:
        """Return the number of GPUs of each pool."""
        count: Counter[str] = Counter()
        for node in self.nodes:
            count[node.pool] += node.allocatable.gpus
        return dict(count)
