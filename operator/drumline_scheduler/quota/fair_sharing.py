"""Fair sharing: the weighted share of each queue, from its present and past use.

The dominant share of a queue is the largest part that its jobs hold of any one resource of the
cluster: the GPUs, the CPU, the memory (DRF, Ghodsi et al., NSDI 2011). GPUs are added up over
pools, each with the weight of its pool, as Kueue adds a resource over flavors and Slurm weighs
trackable resources. A cohort's dominant share counts the jobs of all its members. Past use is kept
as dominant share times seconds and decays with a half-life. Divided by (half-life / ln 2) it is a
share again. A queue that always used the same share has exactly this past share.

    share = (dominant share now + history_weight x past share) / weight

Among siblings the one with the smallest share is served next (`queueing.order`). The past use of a
cohort is the sum of its members'. A cohort's own jobs count as a member of weight 1.

Example of the sum: with 64 GPUs of weight 1 and 8 GPUs of weight 2 the cluster has 80. A queue with
16 and 4 of these has 24 of 80, a share of 0.3.

Example of the past: of two queues of weight 1 in a pool of 8 GPUs, a holds 4 (0.5) and b holds none
but has a past share of 0.25. With history_weight 4, a has 0.5 and b has 1.0: a is served next.

Shares only rise while gangs start in a cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm, log
from typing import Final

from drumline_scheduler.model import Gang, Node, Policy, Pool, Snapshot
from drumline_scheduler.quota.cohorts import QueueTree

_LN_2: Final = log(2.0)
_GPUS: Final = "gpus"
_CPU: Final = "cpu"
_MEMORY: Final = "memory"
_FORGOTTEN: Final = 1e-6
"""Share-seconds below which past use is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Totals that shares are parts of."""

    whole: Mapping[str, int]
    """GPUs in units, CPU and memory of the cluster."""
    gpus_of_pools: Mapping[str, int]
    units: Mapping[str, int]
    """Weight of one of a pool's `gpus`, by pool. Integers, so that sums are exact."""


@dataclass(frozen=True, kw_only=True)
class QueueHistory:
    """Past use of every branch of the queue tree, and the capacity that it relates to."""

    nodes: Sequence[Node]
    """Nodes of the snapshot. The snapshot itself would stay in memory with its gangs."""
    pools: Sequence[Pool]
    shares: Sequence[float]
    """Past share times `history_weight` by branch, not divided by the queue's weight."""

    @cached_property
    def capacity(self) -> Capacity:
        """The totals of the snapshot. O(nodes) once, and many cycles never ask."""
        return _capacity(nodes=self.nodes, pools=self.pools)

    def in_gpus(self, pool: str) -> list[float]:
        """Return the past shares in GPUs of a pool, by branch."""
        whole = self.capacity.gpus_of_pools.get(pool, 0)
        return [share * whole for share in self.shares]


class FairShares:
    """Current use and weighted share of every branch. O(depth) for each change."""

    def __init__(self, *, tree: QueueTree, past: QueueHistory) -> None:
        self._tree = tree
        self._branches = tree.branches
        self._past = past
        self._held: list[dict[str, int]] = [defaultdict(int) for _ in tree.branches]
        self._now = [0.0] * len(tree.branches)

    def copy(self, past: QueueHistory) -> FairShares:
        """Return the same current use with another past use, to be changed separately."""
        clone = FairShares(tree=self._tree, past=past)
        clone._held = [defaultdict(int, held) for held in self._held]
        clone._now = [_dominant(held, capacity=past.capacity) for held in self._held]
        return clone

    def now(self, branch: int) -> float:
        """Return the dominant share that a branch holds now."""
        return self._now[branch]

    def share(self, branch: int) -> float:
        """Return the weighted share of a branch: current plus past."""
        return (self._now[branch] + self._past.shares[branch]) / self._branches[branch].weight

    def change(
        self, *, leaf: int, pool: str, gang: Gang, before: int | None, after: int | None
    ) -> None:
        """Change the number of main pods that a gang holds.

        Args:
            leaf: the branch of the gang's queue.
            pool: the pool of the gang.
            gang: the gang.
            before: main pods that counted until now; None: no pods, not even role pods.
            after: main pods that count from now on; None: no pods.
        """
        unit = self._past.capacity.units.get(pool, 0)
        old, new = (
            _amounts(gang=gang, unit=unit, size=before),
            _amounts(gang=gang, unit=unit, size=after),
        )
        for branch in self._branches[leaf].path:
            held = self._held[branch]
            for thing in new.keys() | old.keys():
                held[thing] += new.get(thing, 0) - old.get(thing, 0)
            self._now[branch] = _dominant(held, capacity=self._past.capacity)


def past_of(*, snapshot: Snapshot, policy: Policy, tree: QueueTree) -> QueueHistory:
    """Return the past use of a snapshot's queues.

    Args:
        snapshot: queues with their use by day.
        policy: weight and half-life of past use.
        tree: queues and cohorts.
    """
    shares = [0.0] * len(tree.branches)
    if policy.history_seconds > 0:
        # Share-seconds of a constant share s approach s x half-life / ln
        # 2, so this factor returns s.
        each = policy.history_weight * _LN_2 / policy.history_seconds
        for name, seconds in sorted(snapshot.history.items()):
            if name in tree.leaf_of:
                for branch in tree.branches[tree.leaf_of[name]].path:
                    shares[branch] += seconds * each
    return QueueHistory(nodes=snapshot.nodes, pools=snapshot.pools, shares=shares)


def dominant_shares(snapshot: Snapshot) -> dict[str, float]:
    """Return the dominant share of each queue's own jobs now, for `decay`."""
    capacity = _capacity(nodes=snapshot.nodes, pools=snapshot.pools)
    held: dict[str, dict[str, int]] = {}
    for admitted in snapshot.admitted:
        mine = held.setdefault(admitted.gang.queue, defaultdict(int))
        for thing, amount in _amounts(
            gang=admitted.gang, unit=capacity.units.get(admitted.pool, 0), size=admitted.size
        ).items():
            mine[thing] += amount
    return {name: _dominant(mine, capacity=capacity) for name, mine in held.items()}


def decay(
    *,
    history: Mapping[str, float],
    shares: Mapping[str, float],
    seconds: float,
    half_life: float,
) -> dict[str, float]:
    """Return `Snapshot.history` after `seconds` in which the queues held these shares.

    The result is exact for constant shares. It does not depend on how the time is divided.

    Args:
        history: share-seconds by queue.
        shares: dominant shares by queue, constant over the time.
        seconds: length of the time.
        half_life: seconds after which half of a use is forgotten.
    """
    if half_life <= 0:
        return {}
    left = 0.5 ** (seconds / half_life)
    gained = (1.0 - left) * half_life / _LN_2
    later = {
        name: history.get(name, 0.0) * left + shares.get(name, 0.0) * gained
        for name in sorted(history.keys() | shares.keys())
    }
    return {name: amount for name, amount in later.items() if amount > _FORGOTTEN}


def _capacity(*, nodes: Sequence[Node], pools: Sequence[Pool]) -> Capacity:
    parts = lcm(*(pool.parts_per_gpu for pool in pools))
    units = {pool.name: pool.share_weight * parts // pool.parts_per_gpu for pool in pools}
    gpus = dict.fromkeys(units, 0)
    whole = {_GPUS: 0, _CPU: 0, _MEMORY: 0}
    for node in nodes:
        if node.pool in units:
            gpus[node.pool] += node.allocatable.gpus
            whole[_GPUS] += node.allocatable.gpus * units[node.pool]
            whole[_CPU] += node.allocatable.cpu_millis
            whole[_MEMORY] += node.allocatable.memory_bytes
    return Capacity(whole=whole, gpus_of_pools=gpus, units=units)


def _dominant(held: Mapping[str, int], *, capacity: Capacity) -> float:
    parts = (held.get(thing, 0) / whole for thing, whole in capacity.whole.items() if whole)
    return max(parts, default=0.0)


def _amounts(*, gang: Gang, unit: int, size: int | None) -> dict[str, int]:
    """Return what a gang holds. Each of its `gpus` counts `unit`."""
    if size is None:
        return {}
    pods = [(role.pods, role.per_pod) for role in gang.roles]
    pods.append((size, gang.per_pod))
    return {
        _GPUS: unit * sum(count * each.gpus for count, each in pods),
        _CPU: sum(count * each.cpu_millis for count, each in pods),
        _MEMORY: sum(count * each.memory_bytes for count, each in pods),
    }
