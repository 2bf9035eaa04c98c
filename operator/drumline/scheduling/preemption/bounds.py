"""What can be had by preemption at most: a "no" before any candidate is looked at.

Of its own queue a gang may take what lower priorities hold there; of another one that borrows, as
much as it has borrowed and all but one GPU of the largest gang beside (`preemption_policy`). If
even all that leaves the quota or the roomiest domain short of GPUs, no set of victims makes room. A
question costs O(queues of its tree x depth), as nothing is borrowed from another tree, beside the
sums of queues in which somebody came or went since (`usage`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from drumline.scheduling.model import PreemptionRule, Reclaim, WithinQueue
from drumline.scheduling.placement.search import Search
from drumline.scheduling.quota.cohorts import CohortQuota
from drumline.scheduling.quota.preemption_policy import PreemptionClaim
from drumline.scheduling.quota.usage import UsageByQueue


class PreemptibleQuota:
    """Which queues hold anything of a pool, by the tree they belong to, when a cycle began."""

    def __init__(self, *, leaves: Iterable[int], roots: Sequence[int]) -> None:
        """Sort some leaves; `roots` has the root of each leaf's tree."""
        self._roots = roots
        self._leaves: dict[int, list[int]] = defaultdict(list)
        """By root."""
        for leaf in leaves:
            self._leaves[roots[leaf]].append(leaf)

    def most(
        self,
        *,
        leaf: int,
        priority: int,
        rule: PreemptionRule,
        claim: PreemptionClaim,
        holders: UsageByQueue,
    ) -> dict[int, int]:
        """By leaf: GPUs that can be taken there at most by a gang of one leaf and priority."""
        found: dict[int, int] = {}
        leaves = self._leaves[self._roots[leaf]]
        if leaf in leaves and rule.within_queue is not WithinQueue.NEVER:
            own = holders.sums(leaf).by_priority.items()
            found[leaf] = sum(gpus for level, gpus in own if level < priority)
        if rule.reclaim is Reclaim.NEVER or (
            rule.reclaim is Reclaim.ANY and not claim.is_entitled(freed=found.get(leaf, 0))
        ):
            return found
        for other in leaves:
            held = holders.sums(other)
            if other == leaf or not held.gpus:
                continue
            if claim.reason(leaf=other, gpus=held.largest, lower_priority=False) is not None:
                reclaimable = claim.reclaimable(leaf=other, largest=held.largest)
                found[other] = min(held.gpus, reclaimable)
        return found


def could_suffice(
    *, search: Search, balance: CohortQuota, leaf: int, gpus: int, most: dict[int, int]
) -> bool:
    """Whether a gang could have its GPUs if all went that can be taken at most."""
    if not gpus:
        return True
    if _free_gpus(search) + sum(most.values()) < gpus:
        return False
    for other, taken in most.items():
        balance.add(leaf=other, gpus=-taken)
    has_room = balance.room(leaf) >= gpus
    for other, taken in most.items():
        balance.add(leaf=other, gpus=taken)
    return has_room


def _free_gpus(search: Search) -> int:
    """GPUs that are free at most in one domain; in the whole pool, where pods differ."""
    if search.demand.roles or search.shape.grain > 1:
        return sum(max(0, free[0]) for free in search.view.free)
    search.index.catch_up()
    free = search.index.gpus[search.depth]
    return max((int(free[identity]) for identity in search.ids), default=0)
