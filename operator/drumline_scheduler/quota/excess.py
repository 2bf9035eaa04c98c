"""Find the gangs that queues give up because their quota was lowered below what they hold.

Only gangs of queues that evict above their quota (`Queue.evicts_excess`) are chosen. A branch of
the queue tree is in excess if it holds more than it may have: a root more than its quota, another
branch more than it may borrow. Gangs leave until no branch is in excess, the lowest priority first,
then the one with the least work to lose. No gang leaves from a queue within its own quota, and
none whose stay leaves no branch in excess. GPUs that a queue borrows rightly are not excess:
an entitled gang reclaims them (`preemption_policy`). Only jobs count. Foreign pods are placed by
another scheduler, and no job leaves because of them.

Example: a queue of 16 GPUs runs A (priority 1), B and C with 8, 4 and 4. Its quota is lowered to 8:
B and C leave. Its quota is raised to 12 before they have left: one of them stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drumline_scheduler.model import Admitted, Queue, Snapshot
from drumline_scheduler.quota.cohorts import CohortQuota, QueueTree


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """A gang that may leave, and the GPUs that it holds."""

    held: Admitted
    leaf: int
    gpus: int


def excess_gangs(snapshot: Snapshot, *, is_gone: Callable[[Admitted], bool]) -> dict[str, str]:
    """Return the gangs that must leave because of their queue's quota, by uid, with the message.

    A gang that leaves for this already is chosen before others, so no other one follows meanwhile.
    O(admitted gangs x depth), only if a queue evicts above its quota.

    Args:
        snapshot: the snapshot of the cycle.
        is_gone: returns whether a gang does not count: it leaves in any case, or has an override.
    """
    if not any(queue.evicts_excess for queue in snapshot.queues):
        return {}
    known = {queue.name: queue for queue in snapshot.queues}
    orphans = {held.gang.queue for held in snapshot.admitted} - known.keys()
    gone = [Queue(name=name, nominal={}) for name in sorted(orphans)]
    tree = QueueTree([*snapshot.queues, *gone]).lasting
    by_pool: dict[str, list[Admitted]] = defaultdict(list)
    for held in snapshot.admitted:
        if not (held.is_residual or held.is_foreign or is_gone(held)):
            by_pool[held.pool].append(held)
    leaving: dict[str, str] = {}
    for pool in sorted(by_pool):
        # 1. What stays if no gang is chosen.
        cohorts, holders = CohortQuota(tree=tree, pool=pool), list[_Holder]()
        for held in by_pool[pool]:
            given_up = sum(held.gang.request_of(place).gpus for place in held.giving_up)
            leaf, gpus = tree.leaf_of[held.gang.queue], held.gpus - given_up
            cohorts.add(leaf=leaf, gpus=gpus)
            queue = known.get(held.gang.queue)
            is_free = not (held.set_aside or held.gang.surplus_of)
            if queue is not None and queue.evicts_excess and gpus > 0 and is_free:
                holders.append(_Holder(held=held, leaf=leaf, gpus=gpus))
        # 2. Choose, and name the GPUs before anything was chosen.
        usage = list(cohorts.usage)
        for each in _chosen(sorted(holders, key=_order), cohorts=cohorts):
            queue = known[each.held.gang.queue]
            leaving[each.held.gang.uid] = (
                f"queue {queue.name} holds {usage[each.leaf]} GPUs of pool {pool}, more than its"
                f" quota of {queue.lasting.get(pool, 0)} allows now: it takes them back"
            )
    return leaving


def _order(holder: _Holder) -> tuple[bool, int, float, float, str]:
    held = holder.held
    risk = held.gpu_seconds_at_risk
    return (not held.departs, held.gang.priority, risk, -held.admitted_at, held.gang.uid)


def _chosen(holders: Sequence[_Holder], *, cohorts: CohortQuota) -> Iterable[_Holder]:
    """Return the gangs that leave; `cohorts` is changed."""
    chosen: list[_Holder] = []
    above = {each.leaf: cohorts.borrowed(each.leaf) for each in holders}
    taken = {each.leaf: (0, 0) for each in holders}  # GPUs, and those of the largest gang
    for each in holders:
        # The largest gang of a queue counts as its last one, like in a reclaim. So the order does
        # not matter, and the next cycles choose the same gangs while they leave.
        total, largest = taken[each.leaf]
        total, largest = total + each.gpus, max(largest, each.gpus)
        if total - largest < above[each.leaf] and _is_in_excess(cohorts, leaf=each.leaf):
            cohorts.add(leaf=each.leaf, gpus=-each.gpus)
            taken[each.leaf] = (total, largest)
            chosen.append(each)
    # A large gang may have made the ones before it unnecessary.
    needed: list[_Holder] = []
    for each in reversed(chosen):
        cohorts.add(leaf=each.leaf, gpus=each.gpus)
        if _is_in_excess(cohorts, leaf=each.leaf):
            cohorts.add(leaf=each.leaf, gpus=-each.gpus)
            needed.append(each)
    return needed


def _is_in_excess(cohorts: CohortQuota, *, leaf: int) -> bool:
    """Return whether a branch from a leaf up to its root holds more than it may have."""
    *below, root = cohorts.paths[leaf]
    if cohorts.borrowed(root):
        return True
    limits = ((branch, cohorts.limit[branch]) for branch in below)
    return any(limit is not None and cohorts.borrowed(branch) > limit for branch, limit in limits)
