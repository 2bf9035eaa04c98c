"""Running gangs that have to leave because their own queue says so, for nobody else's sake.

A queue that is drained gives up everything that it runs: each of its gangs is asked to save, gives
its slots up and waits at its old position, until its queue is open again. So does a queue whose
budget expires with what is spent (`WhenSpent.EXPIRE`): the cycle comes by itself at the moment at
which it is spent. In the cycle that says so, such a gang counts as leaving already: nobody is
preempted for what it is about to free, it is neither repaired nor grown, and no victim of anybody.
If its queue has changed its mind before it has left, it stays where it is.

Example: A and B of queue Q run, C of Q waits. Q is drained: A and B leave, C is rejected, as is A
once it has left. Q is open again while B still saves: B stays; A and C are placed as ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from drumline.scheduling.decisions import QueueEviction, QueueEvictionReason
from drumline.scheduling.model import Admitted, Snapshot, WhenSpent
from drumline.scheduling.quota.budgets import Budgets, asked_again_at


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvictions:
    """Who has to leave, and who may stay after all."""

    leaving: tuple[QueueEviction, ...] = ()
    staying: tuple[str, ...] = ()
    """Uids of gangs that leave for their queue's sake and need not any more."""
    again_at: float | None = None
    """When time alone may have others leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Closed:
    """Why a queue gives up what it runs."""

    why: QueueEvictionReason
    message: str


def queue_evictions(snapshot: Snapshot, *, budgets: Budgets, now: float) -> QueueEvictions:
    """Who leaves from now on. O(queues, and admitted gangs where a queue may give up any)."""
    closed = _closed(snapshot, budgets=budgets)
    leaving = (
        _eviction(held, closed=closed[held.gang.queue])
        for held in snapshot.admitted
        if held.gang.queue in closed and not (held.leaving or held.is_residual)
    )
    staying = (
        held.gang.uid
        for held in snapshot.admitted
        if held.departs and held.gang.queue not in closed
    )
    return QueueEvictions(
        leaving=tuple(sorted(leaving, key=lambda eviction: eviction.key)),
        staying=tuple(sorted(staying)),
        again_at=_again_at(snapshot, closed=closed, now=now),
    )


def _closed(snapshot: Snapshot, *, budgets: Budgets) -> Mapping[str, _Closed]:
    closed: dict[str, _Closed] = {}
    for queue in snapshot.queues:
        expiry = budgets.expiry(queue.name)
        if queue.drained:
            text = f"queue {queue.name} is drained: its jobs save and wait until its stopPolicy is"
            closed[queue.name] = _Closed(
                why=QueueEvictionReason.QUEUE_DRAINED, message=f"{text} None"
            )
        elif expiry is not None:
            closed[queue.name] = _Closed(
                why=QueueEvictionReason.BUDGET_SPENT, message=expiry.message
            )
    return closed


def _again_at(snapshot: Snapshot, *, closed: Mapping[str, _Closed], now: float) -> float | None:
    expiring = {
        queue.name: queue.budget
        for queue in snapshot.queues
        if queue.budget is not None
        if queue.budget.when_spent is WhenSpent.EXPIRE and queue.name not in closed
    }
    if not expiring:
        return None
    gpus: Counter[str] = Counter()
    for held in snapshot.admitted:
        gpus[held.gang.queue] += held.gpus if held.is_foreign or not held.is_residual else 0
    moments = (
        asked_again_at(snapshot.spent.get(name, {}), gpus=gpus[name], budget=budget, now=now)
        for name, budget in expiring.items()
    )
    return min((at for at in moments if at is not None), default=None)


def with_evictions(
    snapshot: Snapshot, *, leaving: Iterable[QueueEviction], staying: Iterable[str]
) -> Snapshot:
    """The snapshot as if these gangs had been told so; the same object if there are none."""
    leave, stay = {eviction.uid for eviction in leaving}, set(staying)
    if not leave and not stay:
        return snapshot

    def as_told(held: Admitted) -> Admitted:
        if held.gang.uid in leave:
            return replace(held, leaving=True, departs=True)
        if held.gang.uid in stay and held.departs:
            return replace(held, leaving=False, departs=False)
        return held

    return replace(snapshot, admitted=tuple(map(as_told, snapshot.admitted)))


def _eviction(held: Admitted, *, closed: _Closed) -> QueueEviction:
    return QueueEviction(
        key=held.gang.key,
        uid=held.gang.uid,
        queue=held.gang.queue,
        gpus=held.gpus,
        gpu_seconds_lost=held.gpu_seconds_at_risk,
        why=closed.why,
        message=closed.message,
    )
