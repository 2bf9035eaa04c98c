"""What holds of budgets after a cycle: a queue whose budget is spent is given nothing new.

The days are gone through one by one, which shares no arithmetic with the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from fractions import Fraction

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Budget, Gang, Refill, Snapshot, WhenSpent


def budget_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions, now: float
) -> list[str]:
    """Gangs that start, preempt, grow or are moved though their queue's budget is spent."""
    if all(queue.budget is None for queue in snapshot.queues):
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
        if gang is not None
        if spends_too_much(gang, snapshot, now=now) in (WhenSpent.REFUSE, WhenSpent.EXPIRE)
    ]


def spends_too_much(gang: Gang, snapshot: Snapshot, *, now: float) -> WhenSpent | None:
    """What the budget of a gang's queue, or its user's part of it, says; None: it is not spent."""
    queue = next((each for each in snapshot.queues if each.name == gang.queue), None)
    budget = None if queue is None else queue.budget
    if budget is None:
        return None
    of_user = snapshot.spent_by_user.get(gang.queue, {}).get(gang.user, {})
    priced = snapshot.spent_prices.get(gang.queue, {})
    bounds: list[tuple[Mapping[int, int], int, int]] = []
    if budget.gpu_hours is not None:
        had_by_all = snapshot.spent.get(gang.queue, {})
        bounds.append((had_by_all, budget.gpu_hours, budget.credit_gpu_hours))
    if budget.cost is not None:
        bounds.append((priced, budget.cost, 0))
    if budget.user_gpu_hours is not None:
        bounds.append((of_user, budget.user_gpu_hours, 0))
    for days, bound, credit in bounds:
        had = {day: Fraction(each, 3600) for day, each in days.items()}
        if _counted(had, bound=bound, credit=credit, budget=budget, now=now) >= bound + credit:
            return budget.when_spent
    return None


def _counted(
    had: Mapping[int, Fraction], *, bound: int, credit: int, budget: Budget, now: float
) -> Fraction:
    """What of it counts against a bound."""
    if budget.refill is None:
        oldest = Fraction(now) / 86400 - budget.window_days
        return sum((amount for day, amount in had.items() if day > oldest), Fraction())
    today = _period_of(int(now // 86400), budget)
    by_period: dict[int, Fraction] = {}
    for day, amount in had.items():
        period = min(today, _period_of(day, budget))
        by_period[period] = by_period.get(period, Fraction()) + amount
    debt = Fraction()
    for period in range(min(by_period, default=today), today):
        beyond = by_period.get(period, Fraction()) - bound
        if beyond + debt > credit:
            debt = max(Fraction(), credit - beyond)
        debt = min(Fraction(bound), max(Fraction(), beyond + debt))
    return debt + by_period.get(today, Fraction())


def _period_of(day: int, budget: Budget) -> int:
    """The number of the week or month of a day: the epoch was a Thursday."""
    if budget.refill is Refill.WEEKLY:
        return (day + 3) // 7
    moment = date(1970, 1, 1) + timedelta(days=day)
    return moment.year * 12 + moment.month
