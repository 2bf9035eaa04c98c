"""Budgets: GPU-hours that the jobs of a queue may have in a time.

A budget is a bound on what is held over time, beside the quota, which is one on what is held at
once. It is a queue's own: what its members of the cohort have does not count, and borrowed GPUs
count as all others. The time is the last days (UTC), today included, so what was had on a day flows
back at a midnight. Or it is a week or a month of the calendar: all is there again with the next,
but for what was had beyond the budget in the one before, which is taken from it. A queue may have
credit then: so much of the next it may take before.

Once a budget is spent no pending gang of the queue starts or preempts, and no elastic one grows.
Running gangs go on, lost positions are replaced, and what they hold counts: the overrun is what
runs. They are not moved either, as a gang that leaves its slots would have to wait for them. With
`WhenSpent.EXPIRE` they leave, too (`queue_evictions`); with `WhenSpent.WARN` nothing is kept from
anybody.

Example: 100 GPU-hours in 2 days; 60 on Monday, 50 on Tuesday. On Tuesday 110 are spent, and gangs
wait. At midnight Monday's flow back: 50 are spent on Wednesday, and they start. Of 100 a week, with
110 had in one, 90 are left of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from drumline.scheduling.decisions import BlockReason, Remedy, RemedyKind
from drumline.scheduling.model import (
    DAY_SECONDS,
    HOUR_SECONDS,
    GpuHourBudget,
    Queue,
    Refill,
    WhenSpent,
)
from drumline.scheduling.rejections import Rejection, counted

_TIME: Final = Remedy(kind=RemedyKind.WAIT)
_MOST_PERIODS: Final = 1000


class Budgets:
    """Which budgets are spent, at one moment.

    Args:
        queues: all queues.
        spent: `Snapshot.spent`.
        now: seconds since the epoch.
    """

    def __init__(
        self, *, queues: Iterable[Queue], spent: Mapping[str, Mapping[int, int]], now: float
    ) -> None:
        self._spent: dict[str, tuple[WhenSpent, Rejection]] = {}
        opens: list[float] = []
        for queue in queues:
            days = spent.get(queue.name, {})
            if queue.budget is None or not is_spent(days, budget=queue.budget, now=now):
                continue
            opens.append(flows_back_at(days, budget=queue.budget, now=now))
            rejection = _rejection(
                queue.name, budget=queue.budget, days=days, now=now, opens_at=opens[-1]
            )
            self._spent[queue.name] = (queue.budget.when_spent, rejection)
        self.retry_at: Final = min(opens, default=None)
        """When time alone may let gangs start: the first midnight at which enough flows back."""
        self.warns: Final = any(when is WhenSpent.WARN for when, _ in self._spent.values())
        """Whether anything is to be said to gangs that start."""

    def rejection(self, queue: str) -> Rejection | None:
        """Why no gang of a queue starts or grows; None: its budget lets them."""
        when, rejection = self._spent.get(queue, (WhenSpent.WARN, None))
        return None if when is WhenSpent.WARN else rejection

    def warning(self, queue: str) -> str:
        """What is to be said to gangs of a queue that start all the same; empty: nothing."""
        when, rejection = self._spent.get(queue, (WhenSpent.REFUSE, None))
        return rejection.message if rejection is not None and when is WhenSpent.WARN else ""

    def expiry(self, queue: str) -> Rejection | None:
        """Why the running gangs of a queue have to leave; None: its budget lets them."""
        when, rejection = self._spent.get(queue, (WhenSpent.WARN, None))
        return rejection if when is WhenSpent.EXPIRE else None


def window_gpu_seconds(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> int:
    """GPU-seconds that count against a budget. O(days)."""
    today = _day(now)
    if budget.refill is None:
        first = today - budget.window_days + 1
        return sum(had for day, had in days.items() if day >= first)
    start = min((_period(day, budget.refill)[0] for day in days), default=today)
    beyond = 0
    while True:
        start, end = _period(start, budget.refill)
        # The clock of another leader may be ahead: what it counted is of the last period.
        is_last = end > today
        had = beyond + sum(
            amount for day, amount in days.items() if start <= day and (is_last or day < end)
        )
        if is_last:
            return had
        beyond, start = max(0, had - _seconds(budget)), end


def is_spent(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> bool:
    """Whether nothing of a budget is left, nor of its credit."""
    bound = _seconds(budget) + budget.credit_gpu_hours * HOUR_SECONDS
    return window_gpu_seconds(days, budget=budget, now=now) >= bound


def asked_again_at(
    days: Mapping[int, int], *, gpus: int, budget: GpuHourBudget, now: float
) -> float | None:
    """When a budget is to be asked again that is not spent, if so many GPUs are held from now on.

    When it is spent, or at midnight, when anything may flow back; None: nothing is held.
    """
    if gpus < 1:
        return None
    bound = _seconds(budget) + budget.credit_gpu_hours * HOUR_SECONDS
    left = bound - window_gpu_seconds(days, budget=budget, now=now)
    return min(now + left / gpus, float((_day(now) + 1) * DAY_SECONDS))


def spent_percent(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> int:
    """How much of a budget is spent, in whole percent, rounded down; above 100 if it is overrun."""
    return 100 * window_gpu_seconds(days, budget=budget, now=now) // _seconds(budget)


def flows_back_at(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> float:
    """The first midnight after which a spent budget is not spent, if nothing more is held."""
    today = _day(now)
    if budget.refill is None:
        last = max((today, *days)) + budget.window_days  # another leader's clock may be ahead
        midnights = [float(DAY_SECONDS * day) for day in range(today + 1, last + 1)]
        return next(at for at in midnights if not is_spent(days, budget=budget, now=at))
    end = today
    for _ in range(_MOST_PERIODS):
        _, end = _period(end, budget.refill)
        if not is_spent(days, budget=budget, now=float(DAY_SECONDS * end)):
            break
    return float(DAY_SECONDS * end)


def _period(day: int, refill: Refill) -> tuple[int, int]:
    """First day of the week or month that a day is in, and of the one after it."""
    date = datetime.fromtimestamp(day * DAY_SECONDS, tz=UTC)
    match refill:
        case Refill.WEEKLY:  # from Monday on, as in ISO 8601
            start = day - date.weekday()
            return start, start + 7
        case Refill.MONTHLY:
            after = date.replace(
                year=date.year + date.month // 12, month=date.month % 12 + 1, day=1
            )
            return day - date.day + 1, int(after.timestamp() // DAY_SECONDS)


def _rejection(
    queue: str, *, budget: GpuHourBudget, days: Mapping[int, int], now: float, opens_at: float
) -> Rejection:
    """In whole percent, so that the words change rarely while its jobs run on."""
    percent = spent_percent(days, budget=budget, now=now)
    date = datetime.fromtimestamp(opens_at, tz=UTC).strftime("%Y-%m-%d")
    back = "enough has flowed back" if budget.refill is None else "there is enough again"
    then = {
        WhenSpent.REFUSE: f"its jobs start once {back}, on {date} (UTC) at the earliest, or once"
        " budget.gpuHours of the queue is raised",
        WhenSpent.WARN: "its jobs start all the same",
        WhenSpent.EXPIRE: f"its jobs save and wait until {back}, on {date} (UTC) at the earliest,"
        " or until budget.gpuHours of the queue is raised",
    }
    return Rejection(
        reason=BlockReason.BUDGET_SPENT,
        message=f"queue {queue} has spent {percent} % of its budget of"
        f" {counted(budget.gpu_hours, 'GPU-hour')} {_time(budget)}: {then[budget.when_spent]}",
        remedy=_TIME,
    )


def _time(budget: GpuHourBudget) -> str:
    match budget.refill:
        case None:
            return f"in {counted(budget.window_days, 'day')}"
        case Refill.WEEKLY:
            return "a week"
        case Refill.MONTHLY:
            return "a month"


def _seconds(budget: GpuHourBudget) -> int:
    return budget.gpu_hours * HOUR_SECONDS


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)
