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
from collections.abc import Mapping
from math import log
from typing import Final

from drumline.scheduling.cohorts import QueueTree
from drumline.scheduling.model import Gang, Policy, Snapshot

_LN_2: Final = log(2.0)
_FORGOTTEN: Final = 1e-6
"""Share-seconds that are as good as none."""


class FairShares:
    """What every branch of the queue tree holds of everything. O(depth) for each change.

    Args:
        tree: the queues.
        capacity: what there is in all: GPUs by pool, `CPU` and `MEMORY`.
        past: by queue, the share that it has had, weighed.
    """

    CPU: Final = "/cpu"
    MEMORY: Final = "/memory"

    def __init__(
        self, *, tree: QueueTree, capacity: Mapping[str, int], past: Mapping[str, float]
    ) -> None:
        self._branches = tree.branches
        self._capacity = capacity
        self._held: list[dict[str, int]] = [defaultdict(int) for _ in tree.branches]
        self._now = [0.0] * len(tree.branches)
        self.past = [0.0] * len(tree.branches)
        """By branch: the share that it has had, weighed by the policy but not by its queue."""
        for name, share in past.items():
            if name in tree.leaf_of:
                for branch in tree.branches[tree.leaf_of[name]].path:
                    self.past[branch] += share

    def now(self, branch: int) -> float:
        """The dominant share that a branch holds now."""
        return self._now[branch]

    def share(self, branch: int) -> float:
        """What a branch has and has had, for its weight."""
        return (self._now[branch] + self.past[branch]) / self._branches[branch].weight

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
            self._now[branch] = max(
                (held[thing] / whole for thing, whole in self._capacity.items() if whole),
                default=0.0,
            )


def fair_shares(*, snapshot: Snapshot, policy: Policy, tree: QueueTree) -> FairShares:
    """The shares of a snapshot's queues, before anybody holds anything."""
    had = policy.history_weight * _LN_2 / policy.history_seconds if policy.history_seconds else 0.0
    return FairShares(
        tree=tree,
        capacity=_capacity(snapshot),
        past={name: seconds * had for name, seconds in snapshot.history.items()},
    )


def dominant_shares(snapshot: Snapshot) -> dict[str, float]:
    """By queue: the part of the cluster that its own jobs hold now, for `decay`."""
    capacity = _capacity(snapshot)
    held: dict[str, dict[str, int]] = {}
    for one in snapshot.admitted:
        mine = held.setdefault(one.gang.queue, defaultdict(int))
        for thing, amount in _amounts(gang=one.gang, pool=one.pool, size=one.size).items():
            mine[thing] += amount
    return {
        name: max((mine[thing] / whole for thing, whole in capacity.items() if whole), default=0.0)
        for name, mine in held.items()
    }


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
    whole |= {FairShares.CPU: 0, FairShares.MEMORY: 0}
    for node in snapshot.nodes:
        if node.pool in whole:
            whole[node.pool] += node.allocatable.gpus
            whole[FairShares.CPU] += node.allocatable.cpu_millis
            whole[FairShares.MEMORY] += node.allocatable.memory_bytes
    return whole


def _amounts(*, gang: Gang, pool: str, size: int | None) -> dict[str, int]:
    if size is None:
        return {}
    pods = [(role.pods, role.per_pod) for role in gang.roles]
    pods.append((size, gang.per_pod))
    return {
        pool: sum(count * each.gpus for count, each in pods),
        FairShares.CPU: sum(count * each.cpu_millis for count, each in pods),
        FairShares.MEMORY: sum(count * each.memory_bytes for count, each in pods),
    }
