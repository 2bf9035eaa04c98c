"""What can be had by preemption at most: a "no" before any candidate is looked at.

Of its own queue a gang may take what lower priorities hold there; of another one that borrows, as
much as it has borrowed and all but one GPU of the largest gang beside (`claim`). If even all that
leaves the quota or the roomiest domain short of GPUs, no set of victims makes room. The figures of
who holds what are summed up once in a cycle: O(admitted); a question costs O(queues of its tree x
depth), as nothing is borrowed from another tree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drumline.scheduling.model import PreemptionRule, Reclaim, WithinQueue
from drumline.scheduling.placing.search import Search
from drumline.scheduling.placing.shortage import Holding
from drumline.scheduling.shares.claim import Claim
from drumline.scheduling.shares.cohorts import Balance


@dataclass(slots=True)
class Held:
    """What the gangs of one queue hold in a pool."""

    gpus: int = 0
    largest: int = 0
    by_priority: dict[int, int] = field(default_factory=dict[int, int])


class Stock:
    """GPUs of one pool by leaf of the queue tree, as they were when the cycle began."""

    def __init__(self, holdings: Iterable[Holding], *, roots: Sequence[int]) -> None:
        """Sum up who holds what; `roots` has the root of each leaf's tree."""
        self._roots = roots
        self._held: dict[int, dict[int, Held]] = defaultdict(lambda: defaultdict(Held))
        """By root, then leaf."""
        for one in holdings:
            if one.gpus:
                held = self._held[roots[one.leaf]][one.leaf]
                held.gpus += one.gpus
                held.largest = max(held.largest, one.gpus)
                level = one.gang.priority
                held.by_priority[level] = held.by_priority.get(level, 0) + one.gpus

    def most(
        self, *, leaf: int, priority: int, rule: PreemptionRule, claim: Claim
    ) -> dict[int, int]:
        """By leaf: GPUs that can be taken there at most by a gang of one leaf and priority."""
        found: dict[int, int] = {}
        tree = self._held[self._roots[leaf]]
        if leaf in tree and rule.within_queue is not WithinQueue.NEVER:
            own = tree[leaf].by_priority.items()
            found[leaf] = sum(gpus for level, gpus in own if level < priority)
        if rule.reclaim is Reclaim.NEVER or (
            rule.reclaim is Reclaim.ANY and not claim.is_entitled(freed=found.get(leaf, 0))
        ):
            return found
        for other, held in tree.items():
            if other == leaf:
                continue
            if claim.reason(leaf=other, gpus=held.largest, lower_priority=False) is not None:
                reclaimable = claim.reclaimable(leaf=other, largest=held.largest)
                found[other] = min(held.gpus, reclaimable)
        return found


def could_suffice(
    *, search: Search, balance: Balance, leaf: int, gpus: int, most: dict[int, int]
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
