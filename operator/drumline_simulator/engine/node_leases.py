"""Track which nodes exist. Nodes of an autoscaled pool boot for a job, and go when idle.

The duration of the n-th boot of a node depends only on the seed, the node and n, so it is the same
under every policy. A node is paid for from its request on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import exp, log
from random import Random

from drumline_scheduler import Node
from drumline_simulator.cluster import Autoscaling, Cluster
from drumline_simulator.results.leases import Lease

IdleNode = Callable[[str, float, int], None]
"""Called with an idle node, the time at which it goes if it stays unused, and its count of uses,
which `NodeLeases.expire` compares."""


class NodeLeases:
    """Existing nodes, and the start of their leases.

    Args:
        cluster: nodes, queues and failures of the simulation.
        seed: seed of all draws.
        on_idle: called when a node becomes idle.
    """

    def __init__(self, *, cluster: Cluster, seed: int, on_idle: IdleNode) -> None:
        self._nodes = {node.name: node for node in cluster.nodes}
        self._scaling: dict[str, Autoscaling] = {}
        for node in cluster.nodes:
            terms = cluster.terms.get(node.pool)
            if terms is not None and terms.autoscaling is not None:
                self._scaling[node.name] = terms.autoscaling
        self._seed = seed
        self._since: dict[str, float] = {}
        self._ready_at: dict[str, float] = {}
        self._boots: Counter[str] = Counter()
        self._jobs: Counter[str] = Counter()
        self._uses: Counter[str] = Counter()
        self._ended: list[Lease] = []
        self._on_idle = on_idle

    @property
    def absent(self) -> frozenset[str]:
        """Return autoscaled nodes that do not exist. A job that gets them waits for their boot."""
        return frozenset(self._scaling.keys() - self._since.keys())

    def are_ready(self, nodes: Iterable[str], *, now: float) -> bool:
        """Return whether all these nodes exist and have booted."""
        scaled = (name for name in nodes if name in self._scaling)
        return all(name in self._since and self._ready_at[name] <= now for name in scaled)

    def take(self, nodes: Iterable[str], *, now: float) -> float:
        """Boot missing nodes of a job. Return the seconds until the last node is ready."""
        wait = 0.0
        for name in set(nodes):
            self._jobs[name] += 1
            self._uses[name] += 1
            scaling = self._scaling.get(name)
            if scaling is None:
                continue
            if name not in self._since:
                self._since[name] = now
                self._ready_at[name] = now + self._boot_seconds(name, scaling)
            wait = max(wait, self._ready_at[name] - now)
        return wait

    def give_back(self, nodes: Iterable[str], *, now: float) -> None:
        """Record that a job no longer uses nodes."""
        for name in set(nodes):
            self._jobs[name] -= 1
            scaling = self._scaling.get(name)
            if scaling is not None and not self._jobs[name] and name in self._since:
                self._on_idle(name, now + scaling.idle_seconds, self._uses[name])

    def expire(self, name: str, *, uses: int, now: float) -> None:
        """Remove an idle node, unless it was used again.

        Args:
            name: name of the node.
            uses: number of uses when it became idle.
            now: seconds of the virtual clock.
        """
        if not self._jobs[name] and self._uses[name] == uses:
            self.lose(name, now=now)

    def lose(self, name: str, *, now: float) -> None:
        """Remove a node. It boots again for the next job."""
        if name in self._scaling and name in self._since:
            self._ended.append(_lease(self._nodes[name], since=self._since.pop(name), until=now))

    def all(self, *, began_at: float, now: float) -> tuple[Lease, ...]:
        """Return all leases until now. A node that always exists has one."""
        lasting = (
            _lease(node, since=self._since.get(name, began_at), until=now)
            for name, node in self._nodes.items()
            if name not in self._scaling or name in self._since
        )
        return (*self._ended, *lasting)

    def _boot_seconds(self, name: str, scaling: Autoscaling) -> float:
        self._boots[name] += 1
        draw = Random(f"{self._seed}/{name}/{self._boots[name]}")  # noqa: S311 - a simulated boot
        seconds = 0.0
        while draw.random() < scaling.missing_share:
            seconds += scaling.retry_seconds
        return seconds + exp(draw.gauss(log(scaling.boot_seconds), scaling.boot_spread))


def _lease(node: Node, *, since: float, until: float) -> Lease:
    return Lease(
        node=node.name,
        pool=node.pool,
        gpus=node.allocatable.gpus,
        begins_at=since,
        ends_at=max(since, until),
    )
