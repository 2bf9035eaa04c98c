"""Evict running gangs because their own queue is drained, over its quota or out of budget.

A drained queue gives up everything that it runs. Each of its gangs is asked to save, gives its
slots up, and waits at its old position until its queue is open again. The same happens when a spent
budget expires (`WhenSpent.EXPIRE`). A cycle is scheduled for the time at which it is spent. A queue
that evicts above its quota gives up what it holds beyond that (`quota.excess`). In the cycle that
evicts it, such a gang already counts as leaving. No gang is preempted for the capacity
that it frees. It is not repaired, does not grow, and is not a victim. If its queue is opened again
before it has left, it stays on its nodes.

Example: A and B of queue Q run, and C of Q waits. Q is drained: A and B leave, and C is rejected,
like A once it has left. Q is opened while B still saves: B stays, and A and C are placed as usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from drumline_scheduler.decisions import QueueEviction, QueueEvictionReason
from drumline_scheduler.faults import Stage, deciding
from drumline_scheduler.model import Admitted, Snapshot, WhenSpent
from drumline_scheduler.overrides import active_overrides
from drumline_scheduler.quota.excess import excess_gangs
from drumline_scheduler.quota.usage_budgets import Budgets, next_check_at


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvictions:
    """Gangs that must leave, and gangs that may stay after all."""

    leaving: tuple[QueueEviction, ...] = ()
    staying: tuple[str, ...] = ()
    """Uids of gangs that no longer have to leave for their queue."""
    again_at: float | None = None
    """Time at which further gangs may have to leave without other events."""


def queue_evictions(snapshot: Snapshot, *, budgets: Budgets, now: float) -> QueueEvictions:
    """Return the gangs that must leave from now on.

    O(queues), plus O(admitted gangs) if a queue may give up any.

    Args:
        snapshot: the snapshot of the cycle.
        budgets: budgets at its time.
        now: seconds since the epoch.
    """
    drained = frozenset(queue.name for queue in snapshot.queues if queue.drained)
    expiring = {
        queue.name: queue.budget
        for queue in snapshot.queues
        if queue.budget is not None and queue.budget.when_spent is WhenSpent.EXPIRE
    }
    leaving: list[QueueEviction] = []
    staying: list[str] = []
    overrides = active_overrides(snapshot.queues, now=now)
    # 1. Check each running gang of a queue that may give up gangs, or that was evicted before.
    excess = excess_gangs(
        snapshot,
        is_gone=lambda held: (
            (held.leaving and not held.departs)
            or held.gang.queue in drained
            or budgets.expiry(held.gang) is not None
            # It holds more than the quota allows with permission, until the override ends.
            or (held.gang.queue, held.gang.key) in overrides
        ),
    )
    running = snapshot.admitted
    if not (drained or expiring or excess):  # none leaves: only earlier evictions are looked at
        running = tuple([held for held in running if held.departs])
    surplus = {held.gang.surplus_of: held for held in running if held.gang.surplus_of}
    for held in running:
        if held.gang.surplus_of or held.set_aside:  # surplus leaves with the gang that it is beside
            continue
        may_leave = held.gang.queue in drained or held.gang.queue in expiring
        if not (held.departs or may_leave or held.gang.uid in excess):
            continue
        with deciding(held.gang, Stage.QUEUE):
            eviction = _eviction(
                held, drained=drained, budgets=budgets, excess=excess.get(held.gang.uid)
            )
        if eviction is None and held.departs:
            staying.append(held.gang.uid)
        elif eviction is not None and not (held.leaving or held.is_residual):
            beside = surplus.get(held.gang.uid)
            gpus = eviction.gpus + (beside.gpus if beside else 0)
            leaving.append(replace(eviction, gpus=gpus))
    # 2. The next time at which a budget expires. A drained queue has nothing left to expire.
    moments = (
        next_check_at(snapshot, queue=name, budget=budget, now=now)
        for name, budget in expiring.items()
        if name not in drained
    )
    return QueueEvictions(
        leaving=tuple(sorted(leaving, key=lambda eviction: eviction.key)),
        staying=tuple(sorted(staying)),
        again_at=min((at for at in moments if at is not None), default=None),
    )


def stopped_queues(snapshot: Snapshot, *, now: float) -> dict[str, str]:
    """Return the queues that also give up other workloads, with the reason.

    Only the budget of the queue as a whole counts, because these workloads have no user.
    """
    stopped = {
        queue.name: f"queue {queue.name} is drained" for queue in snapshot.queues if queue.drained
    }
    expiring = [
        queue.name
        for queue in snapshot.queues
        if queue.budget is not None and queue.budget.when_spent is WhenSpent.EXPIRE
    ]
    spent = Budgets(snapshot, now=now).spent if expiring else frozenset[tuple[str, str | None]]()
    for name in expiring:
        if (name, None) in spent:
            stopped.setdefault(name, f"the budget of queue {name} is used up, and expires")
    return stopped


def with_evictions(
    snapshot: Snapshot, *, leaving: Iterable[QueueEviction], staying: Iterable[str]
) -> Snapshot:
    """Return the snapshot with these evictions applied. Without any, it is the same object.

    Args:
        snapshot: state before the evictions.
        leaving: gangs that their own queue evicts.
        staying: names of gangs whose eviction is withdrawn.
    """
    leave, stay = {eviction.uid for eviction in leaving}, set(staying)
    if not leave and not stay:
        return snapshot

    def with_eviction(held: Admitted) -> Admitted:
        uid = held.gang.surplus_of or held.gang.uid
        if uid in leave:
            return replace(held, leaving=True, departs=True)
        if uid in stay and held.departs:
            return replace(held, leaving=False, departs=False)
        return held

    return replace(snapshot, admitted=tuple(map(with_eviction, snapshot.admitted)))


def _eviction(
    held: Admitted, *, drained: frozenset[str], budgets: Budgets, excess: str | None
) -> QueueEviction | None:
    """Return the eviction of a gang for its queue; None if it may run.

    Args:
        held: the gang.
        drained: queues that give up all gangs.
        budgets: budgets of the queues.
        excess: why its queue takes back its quota. None: it does not.
    """
    gang = held.gang
    expiry = budgets.expiry(gang)
    if gang.queue in drained:
        why = QueueEvictionReason.QUEUE_DRAINED
        message = (
            f"queue {gang.queue} is drained: its jobs save and wait until its stopPolicy is None"
        )
    elif expiry is not None:
        why, message = QueueEvictionReason.BUDGET_SPENT, expiry.message
    elif excess is not None:
        why, message = QueueEvictionReason.QUOTA_LOWERED, excess
    else:
        return None
    return QueueEviction(
        key=gang.key,
        uid=gang.uid,
        queue=gang.queue,
        gpus=held.gpus,
        gpu_seconds_lost=held.gpu_seconds_at_risk,
        why=why,
        message=message,
    )
