"""Budgets: GPU-hours that the jobs of a queue may have in a time.

A budget is a bound on what is held over time, beside the quota, which is one on what is held at
once. It is a queue's own: what its members of the cohort have does not count, and borrowed GPUs
count as all others. The time is the last days (UTC), today included, so what was had on a day flows
back at a midnight, and nothing is ever reset.

Once a budget is spent no pending gang of the queue starts or preempts, and no elastic one grows.
Running gangs go on, lost positions are replaced, and what they hold counts: the overrun is what
runs. They are not moved either, as a gang that leaves its slots would have to wait for them.

Example: 100 GPU-hours in 2 days; 60 on Monday, 50 on Tuesday. On Tuesday 110 are spent, and gangs
wait. At midnight Monday's flow back: 50 are spent on Wednesday, and they start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from drumline.scheduling.decisions import BlockReason, Remedy, RemedyKind
from drumline.scheduling.model import DAY_SECONDS, HOUR_SECONDS, GpuHourBudget, Queue
from drumline.scheduling.rejections import Rejection, counted

_TIME: Final = Remedy(kind=RemedyKind.WAIT)


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
        self._rejections: dict[str, Rejection] = {}
        opens: list[float] = []
        for queue in queues:
            days = spent.get(queue.name, {})
            if queue.budget is None or not is_spent(days, budget=queue.budget, now=now):
                continue
            opens.append(flows_back_at(days, budget=queue.budget, now=now))
            self._rejections[queue.name] = _rejection(
                queue.name, budget=queue.budget, days=days, now=now, opens_at=opens[-1]
            )
        self.retry_at: Final = min(opens, default=None)
        """When time alone may let gangs start: the first midnight at which enough flows back."""

    def rejection(self, queue: str) -> Rejection | None:
        """Why no gang of a queue starts or grows; None: its budget is not spent, or it has none."""
        return self._rejections.get(queue)


def window_gpu_seconds(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> int:
    """GPU-seconds of the days that count. O(days)."""
    first = _day(now) - budget.window_days + 1
    return sum(had for day, had in days.items() if day >= first)


def is_spent(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> bool:
    """Whether nothing of a budget is left."""
    return window_gpu_seconds(days, budget=budget, now=now) >= _seconds(budget)


def spent_percent(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> int:
    """How much of a budget is spent, in whole percent, rounded down; above 100 if it is overrun."""
    return 100 * window_gpu_seconds(days, budget=budget, now=now) // _seconds(budget)


def flows_back_at(days: Mapping[int, int], *, budget: GpuHourBudget, now: float) -> float:
    """The first midnight after which a spent budget is not spent, if nothing more is held."""
    today = _day(now)
    last = max((today, *days)) + budget.window_days  # the clock of another leader may be ahead
    midnights = (float(DAY_SECONDS * day) for day in range(today + 1, last + 1))
    return next(at for at in midnights if not is_spent(days, budget=budget, now=at))


def _rejection(
    queue: str, *, budget: GpuHourBudget, days: Mapping[int, int], now: float, opens_at: float
) -> Rejection:
    """In whole percent, so that the words change rarely while its jobs run on."""
    percent = spent_percent(days, budget=budget, now=now)
    date = datetime.fromtimestamp(opens_at, tz=UTC).strftime("%Y-%m-%d")
    return Rejection(
        reason=BlockReason.BUDGET_SPENT,
        message=f"queue {queue} has spent {percent} % of its budget of"
        f" {counted(budget.gpu_hours, 'GPU-hour')} in {counted(budget.window_days, 'day')}:"
        f" its jobs start once enough has flowed back, on {date} (UTC) at the earliest, or once"
        " budget.gpuHours of the queue is raised",
        remedy=_TIME,
    )


def _seconds(budget: GpuHourBudget) -> int:
    return budget.gpu_hours * HOUR_SECONDS


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)
