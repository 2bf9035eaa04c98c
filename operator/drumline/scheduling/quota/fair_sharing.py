"""Fair shares: how much of the cluster each queue has and has had, for what it is due.

The dominant share of a queue is the largest part that its jobs hold of any one thing: the GPUs of a
pool, the CPU, the memory (DRF, Ghodsi et al., NSDI 2011). A cohort's is that of its members' jobs
together. What a queue has had is remembered as dominant share times seconds, and half of it is
forgotten after each half-life; divided by the half-life over ln 2 it is a share again, the one that
a queue would have if it had always had the same. So

    share = (dominant share now + history_weight x share it has had) / weight

and among siblings the smallest share is the next to get something (`ordering`). For a cohort, what
it has had is the sum of its members'. A cohort's own jobs count as a member of weight 1.

While gangs start, shares only rise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from drumline.scheduling.model import Gang, Policy, Snapshot
from drumline.scheduling.quota.cohorts import QueueTree

_LN_2: Final = log(2.0)
_CPU: Final = "/cpu"
_MEMORY: Final = "/memory"
"""Beside the names of pools, which have no slash."""
_FORGOTTEN: Final = 1e-6
"""Share-seconds that are as good as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHistory:
    """What every branch of the queue tree has had, and what there is to have."""

    capacity: Mapping[str, int]
    """GPUs by pool, CPU and memory."""
    shares: Sequence[float]
    """By branch: the share that it has had, weighed by the policy but not by its queue."""

    def in_gpus(self, pool: str) -> list[float]:
        """The same in GPUs of a pool."""
        whole = self.capacity.get(pool, 0)
        return [share * whole for share in self.shares]


class FairShares:
    """What every branch of the queue tree holds of everything. O(depth) for each change."""

    def __init__(self, *, tree: QueueTree, past: QueueHistory) -> None:
        self._tree = tree
        self._branches = tree.branches
        self._past = past
        self._held: list[dict[str, int]] = [defaultdict(int) for _ in tree.branches]
        self._now = [0.0] * len(tree.branches)

    def copy(self, past: QueueHistory) -> FairShares:
        """The same holdings, to be changed separately, beside another past."""
        twin = FairShares(tree=self._tree, past=past)
        twin._held = [defaultdict(int, held) for held in self._held]
        twin._now = [_dominant(held, capacity=past.capacity) for held in self._held]
        return twin

    def now(self, branch: int) -> float:
        """The dominant share that a branch holds now."""
        return self._now[branch]

    def share(self, branch: int) -> float:
        """What a branch has and has had, for its weight."""
        return (self._now[branch] + self._past.shares[branch]) / self._branches[branch].weight

    def change(
        self, *, leaf: int, pool: str, gang: Gang, before: int | None, after: int | None
    ) -> None:
        """Let a gang hold another number of main pods; None: nothing, not even its roles."""
        old, new = (
            _amounts(gang=gang, pool=pool, size=before),
            _amounts(gang=gang, pool=pool, size=after),
        )
        for branch in self._branches[leaf].path:
            held = self._held[branch]
            for thing in new.keys() | old.keys():
                held[thing] += new.get(thing, 0) - old.get(thing, 0)
            self._now[branch] = _dominant(held, capacity=self._past.capacity)


def past_of(*, snapshot: Snapshot, policy: Policy, tree: QueueTree) -> QueueHistory:
    """What the queues of a snapshot have had."""
    shares = [0.0] * len(tree.branches)
    if policy.history_seconds > 0:
        each = policy.history_weight * _LN_2 / policy.history_seconds
        for name, seconds in sorted(snapshot.history.items()):
            if name in tree.leaf_of:
                for branch in tree.branches[tree.leaf_of[name]].path:
                    shares[branch] += seconds * each
    return QueueHistory(capacity=_capacity(snapshot), shares=shares)


def dominant_shares(snapshot: Snapshot) -> dict[str, float]:
    """By queue: the part of the cluster that its own jobs hold now, for `decay`."""
    capacity = _capacity(snapshot)
    held: dict[str, dict[str, int]] = {}
    for admitted in snapshot.admitted:
        mine = held.setdefault(admitted.gang.queue, defaultdict(int))
        for thing, amount in _amounts(
            gang=admitted.gang, pool=admitted.pool, size=admitted.size
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
    """`Snapshot.history` after so many seconds more in which the queues held these shares.

    Exact for shares that do not change meanwhile: cutting a time into pieces changes nothing.
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


def _capacity(snapshot: Snapshot) -> dict[str, int]:
    whole: dict[str, int] = {pool.name: 0 for pool in snapshot.pools}
    whole |= {_CPU: 0, _MEMORY: 0}
    for node in snapshot.nodes:
        if node.pool in whole:
            whole[node.pool] += node.allocatable.gpus
            whole[_CPU] += node.allocatable.cpu_millis
            whole[_MEMORY] += node.allocatable.memory_bytes
    return whole


def _dominant(held: Mapping[str, int], *, capacity: Mapping[str, int]) -> float:
    parts = (held.get(thing, 0) / whole for thing, whole in capacity.items() if whole)
    return max(parts, default=0.0)


def _amounts(*, gang: Gang, pool: str, size: int | None) -> dict[str, int]:
    if size is None:
        return {}
    pods = [(role.pods, role.per_pod) for role in gang.roles]
    pods.append((size, gang.per_pod))
    return {
        pool: sum(count * each.gpus for count, each in pods),
        _CPU: sum(count * each.cpu_millis for count, each in pods),
        _MEMORY: sum(count * each.memory_bytes for count, each in pods),
    }
