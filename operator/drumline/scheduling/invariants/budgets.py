"""What holds of budgets after a cycle: a queue whose budget is spent is given nothing new.

The days are gone through one by one, which shares no arithmetic with the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from drumline.scheduling.decisions import Decisions
from drumline.scheduling.model import Gang, Queue, Snapshot


def budget_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions, now: float
) -> list[str]:
    """Gangs that start, preempt, grow or are moved though their queue's budget is spent."""
    spent = {queue.name for queue in snapshot.queues if _is_spent(queue, snapshot, now=now)}
    if not spent:
        return []
    running = {held.gang.uid: held for held in snapshot.admitted}
    waiting = {gang.uid: gang for gang in pending}
    moved = [move.uid for move in decisions.moves]
    moved += [
        victim.uid
        for preemption in decisions.preemptions
        for victim in preemption.victims
        if victim.moves_to
    ]
    grown = [
        resized.uid
        for resized in decisions.resized
        if len(resized.kept) + len(resized.added) > len(running[resized.uid].assignment)
    ]
    does = [
        *((waiting.get(placed.uid), "starts") for placed in decisions.placed),
        *((waiting.get(preemption.uid), "preempts") for preemption in decisions.preemptions),
        *((running[uid].gang, "grows") for uid in grown),
        *((running[uid].gang, "is moved") for uid in moved),
    ]
    return [
        f"{gang.key} {what} though the budget of queue {gang.queue} is spent"
        for gang, what in does
        if gang is not None and gang.queue in spent
    ]


def _is_spent(queue: Queue, snapshot: Snapshot, *, now: float) -> bool:
    """Whether the hours of today and the days before it, as many as count, reach the budget."""
    if queue.budget is None:
        return False
    days = snapshot.spent.get(queue.name, {})
    oldest = Fraction(now) / 86400 - queue.budget.window_days
    hours = sum((Fraction(had, 3600) for day, had in days.items() if day > oldest), Fraction())
    return hours >= queue.budget.gpu_hours
