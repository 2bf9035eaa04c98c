"""What holds of budgets after a cycle: a queue whose budget is spent is given nothing new.

The days are gone through one by one, which shares no arithmetic with the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from fractions import Fraction

from drumline.scheduling.decisions import Decisions
from drumline.scheduling.model import (
    Gang,
    GpuHourBudget,
    Queue,
    Refill,
    Snapshot,
    WhenSpent,
)


def budget_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions, now: float
) -> list[str]:
    """Gangs that start, preempt, grow or are moved though their queue's budget is spent."""
    warned = {
        queue.name
        for queue in snapshot.queues
        if queue.budget is not None and queue.budget.when_spent is WhenSpent.WARN
    }
    spent = spent_queues(snapshot, now=now) - warned
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


def spent_queues(snapshot: Snapshot, *, now: float) -> set[str]:
    """The queues whose budget is spent, whatever follows from it."""
    return {queue.name for queue in snapshot.queues if _is_spent(queue, snapshot, now=now)}


def _is_spent(queue: Queue, snapshot: Snapshot, *, now: float) -> bool:
    """Whether the hours of the days that count reach the budget and its credit."""
    budget = queue.budget
    if budget is None:
        return False
    days = snapshot.spent.get(queue.name, {})
    had = {day: Fraction(seconds, 3600) for day, seconds in days.items()}
    if budget.refill is None:
        oldest = Fraction(now) / 86400 - budget.window_days
        hours = sum((amount for day, amount in had.items() if day > oldest), Fraction())
        return hours >= budget.gpu_hours
    today = _period_of(int(now // 86400), budget)
    by_period: dict[int, Fraction] = {}
    for day, amount in had.items():
        period = min(today, _period_of(day, budget))
        by_period[period] = by_period.get(period, Fraction()) + amount
    beyond = Fraction()
    for period in range(min(by_period, default=today), today):
        beyond = max(Fraction(), beyond + by_period.get(period, Fraction()) - budget.gpu_hours)
    bound = budget.gpu_hours + budget.credit_gpu_hours
    return beyond + by_period.get(today, Fraction()) >= bound


def _period_of(day: int, budget: GpuHourBudget) -> int:
    """The number of the week or month of a day: the epoch was a Thursday."""
    if budget.refill is Refill.WEEKLY:
        return (day + 3) // 7
    moment = date(1970, 1, 1) + timedelta(days=day)
    return moment.year * 12 + moment.month
