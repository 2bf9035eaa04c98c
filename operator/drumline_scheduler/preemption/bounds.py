"""An upper bound on what preemption can free, to reject a request before candidates are searched.

From its own queue a gang may take the GPUs of lower priorities. From another queue that borrows, it
may take the borrowed GPUs and all but one GPU of its largest gang (`preemption_policy`). If all of
that is not enough for the quota or for the domain with the most free GPUs, no set of victims makes
room. O(queues of the cohort x depth), plus updating the sums of queues that changed (`usage`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from drumline_scheduler.model import PreemptionRule, Reclaim, WithinQueue
from drumline_scheduler.placement.search import Search
from drumline_scheduler.quota.cohorts import CohortQuota
from drumline_scheduler.quota.preemption_policy import PreemptionClaim
from drumline_scheduler.quota.usage import UsageByQueue


class PreemptibleQuota:
    """The queues that hold GPUs of a pool at the beginning of a cycle, by cohort."""

    def __init__(self, *, leaves: Iterable[int], roots: Sequence[int]) -> None:
        """Group the leaves; `roots` has the root of each leaf's cohort."""
        self._roots = roots
        self._leaves: dict[int, list[int]] = defaultdict(list)
        """Leaves by the root of their cohort."""
        for leaf in leaves:
            self._leaves[roots[leaf]].append(leaf)

    def most(
        self,
        *,
        leaf: int,
        priority: int,
        rule: PreemptionRule,
        claim: PreemptionClaim,
        usage: UsageByQueue,
    ) -> dict[int, int]:
        """Return the most GPUs that a gang could take from each queue, by leaf.

        Args:
            leaf: branch of the gang's queue.
            priority: priority of the gang.
            rule: preemption rule of its queue.
            claim: its claim to quota, without victims.
            usage: usage of the pool.
        """
        most: dict[int, int] = {}
        leaves = self._leaves[self._roots[leaf]]
        if claim.overrides:  # it may need the nodes of a queue in another cohort
            leaves = [each for group in self._leaves.values() for each in group]
        if leaf in leaves and rule.within_queue is not WithinQueue.NEVER:
            own = usage.sums(leaf).by_priority.items()
            most[leaf] = sum(gpus for level, gpus in own if level < priority)
        # Under `Any`, a gang that is not entitled to its GPUs even then can reclaim nothing.
        if rule.reclaim is Reclaim.NEVER or (
            rule.reclaim is not Reclaim.FAIR_SHARE
            and not claim.is_entitled(freed=most.get(leaf, 0))
        ):
            return most
        for other in leaves:
            if other == leaf or not (held := usage.sums(other)).gpus:
                continue
            if claim.reason(leaf=other, gpus=held.largest, lower_priority=True) is not None:
                reclaimable = claim.reclaimable(leaf=other, largest=held.largest)
                most[other] = min(held.gpus, reclaimable)
        return most


def could_suffice(
    *, search: Search, cohorts: CohortQuota, leaf: int, gpus: int, most: dict[int, int]
) -> bool:
    """Return whether a gang could have its GPUs, in quota and in a domain, if `most` were taken.

    Args:
        search: the gang's search.
        cohorts: quota of the pool; unchanged afterwards.
        leaf: branch of the gang's queue.
        gpus: GPUs that the gang needs.
        most: GPUs that can be taken, by leaf.
    """
    if not gpus:
        return True
    if _free_gpus(search) + sum(most.values()) < gpus:
        return False
    for other, taken in most.items():
        cohorts.add(leaf=other, gpus=-taken)
    has_room = cohorts.room(leaf) >= gpus
    for other, taken in most.items():
        cohorts.add(leaf=other, gpus=taken)
    return has_room


def _free_gpus(search: Search) -> int:
    """Return the most free GPUs of a domain; of the whole pool if the gang's pods differ."""
    if search.demand.roles or search.shape.grain > 1:
        return sum(max(0, free[0]) for free in search.view.free)
    search.index.catch_up()
    free = search.index.gpus[search.depth]
    return max((int(free[identity]) for identity in search.ids), default=0)
