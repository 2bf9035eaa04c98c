"""What is left of a queue's budget: day by day until now, and as it goes on from here.

The operator's tally (`status.budget.days`) has GPU-seconds by day. The window is the last days
(UTC), today included, so what was had on a day flows back at a midnight; or the calendar refills
it, but for what was had beyond it in the week or month before, as the scheduler carries it over
(`scheduling/quota/budgets`). What is expected is by
what the queue holds now, and nothing else: no job ends, none starts.

Example: 100 GPU-hours in 2 days; 60 on Monday, 30 on Tuesday until noon, 2 GPUs held. On Tuesday at
17:00 it is spent; at midnight Monday's flow back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Final

import msgspec

from drumline.overview.objects import BudgetOfQueue, QueueObject, SpentOfBudget, seconds
from drumline.overview.rows import BudgetDay, BudgetRow, QuotaRow
from drumline_trainer.contract import plain

_DAY: Final = 86_400.0
_HOUR: Final = 3600.0
_MOST_DAYS: Final = 92
_REFILL_DAYS: Final = {"Weekly": 7, "Monthly": 31}
"""How far is looked back and ahead where the calendar refills a budget."""
_EPOCH: Final = date(1970, 1, 1).toordinal()


def budget_row(
    queue: QueueObject | None, quotas: Sequence[QuotaRow], *, now: float
) -> BudgetRow | None:
    """The budget of a queue, what of it is spent and will be; None: it has none.

    Args:
        queue: as the operator last wrote it.
        quotas: what it holds now.
        now: seconds since the epoch.
    """
    if queue is None or queue.spec.budget is None:
        return None
    budget, spent = queue.spec.budget, queue.status.budget
    row = BudgetRow(
        gpu_hours=budget.gpu_hours,
        window_days=budget.window_days,
        spent_gpu_hours=0 if spent is None else spent.spent_gpu_hours,
        refill=plain(budget.refill),
        credit_gpu_hours=budget.credit_gpu_hours,
        when_spent=plain(budget.when_spent),
        cost=plain(budget.cost),
        spent_cost="" if spent is None else plain(spent.spent_cost),
    )
    days = _REFILL_DAYS.get(budget.refill, budget.window_days)
    if spent is None or not budget.gpu_hours or not 1 <= days <= _MOST_DAYS:
        return row
    gpus = sum(quota.used_gpus for quota in quotas)
    tally = _SpentDays(spent, budget=budget, gpus=gpus, now=now)
    return _with_days(row, tally, days=days, now=now)


class _SpentDays:
    """GPU-seconds by day, to `now` and beyond it at what is held now."""

    def __init__(
        self, spent: SpentOfBudget, *, budget: BudgetOfQueue, gpus: int, now: float
    ) -> None:
        self._budget = budget
        self._gpus = gpus
        self._until = min(seconds(spent.until) or now, now)
        self._days: Mapping[int, int] = {
            number: day.gpu_seconds
            for day in (spent.days or ())[:_MOST_DAYS]
            if (number := _number(day.day)) is not None
        }

    def counted(self, moment: float) -> float:
        """What counts, or will count, against the budget at this moment."""
        today = int(moment // _DAY)
        if self._budget.refill not in _REFILL_DAYS:
            return self._had(today - self._budget.window_days + 1, moment)
        start, debt = _refill_before(min((*self._days, today)), self._budget.refill), 0.0
        while True:
            end = _refill_after(start, self._budget.refill)
            had = self._had(start, min(moment, end * _DAY))
            if end > today:
                return had + debt
            start, debt = end, self._carried(had, debt)

    def _carried(self, had: float, debt: float) -> float:
        """What of a week or month is taken from the next, where so much was taken from it."""
        whole, credit = self._budget.gpu_hours * _HOUR, self._budget.credit_gpu_hours * _HOUR
        unpaid = min(credit, had + debt - whole)
        return max(0.0, min(whole, max(had - whole, unpaid)))

    def _had(self, first: int, until: float) -> float:
        """What was or will be had from a day on until a moment."""
        known = sum(amount for day, amount in self._days.items() if first <= day < until / _DAY)
        return known + self._gpus * max(0.0, until - max(self._until, first * _DAY))


def _refill_before(day: int, refill: str) -> int:
    """The last day, this one included, on which a budget was refilled: a Monday, or a first."""
    moment = date.fromordinal(day + _EPOCH)
    return day - (moment.weekday() if refill == "Weekly" else moment.day - 1)


def _refill_after(day: int, refill: str) -> int:
    """The day of the next refill after this one."""
    return _refill_before(day + 7 if refill == "Weekly" else day + 31, refill)


def _with_days(row: BudgetRow, tally: _SpentDays, *, days: int, now: float) -> BudgetRow:
    whole = row.gpu_hours * _HOUR
    bound = whole + row.credit_gpu_hours * _HOUR
    today = int(now // _DAY)
    present = tally.counted(now)

    def left(moment: float) -> float:
        return round((whole - tally.counted(moment)) / _HOUR, 1)

    def day_ends(first: int, last: int) -> tuple[BudgetDay, ...]:
        """What is left a second before each of these days is over."""
        ends = ((day + 1) * _DAY for day in range(first, last))
        return tuple(BudgetDay(at=end, left_gpu_hours=left(end - 1)) for end in ends)

    return msgspec.structs.replace(
        row,
        left=(
            *day_ends(today - days + 1, today),
            BudgetDay(at=now, left_gpu_hours=left(now)),
        ),
        expected=day_ends(today, today + days),
        spent_at=None if present >= bound else _spent_at(tally, bound, days=days, now=now),
        back_at=_back_at(tally, bound, days=days, now=now) if present >= bound else None,
    )


def _spent_at(tally: _SpentDays, whole: float, *, days: int, now: float) -> float | None:
    """The first moment within the window's length at which all is spent."""
    for begins, ends in _days_from(now, days=days):
        first, last = (tally.counted(moment) for moment in (begins, ends - 1))
        if first >= whole:
            return begins
        if last >= whole:
            return begins + (whole - first) / (last - first) * (ends - 1 - begins)
    return None


def _back_at(tally: _SpentDays, whole: float, *, days: int, now: float) -> float | None:
    """The first midnight at which less than all is spent."""
    for _, midnight in _days_from(now, days=days):
        if tally.counted(midnight) < whole:
            return midnight
    return None


def _days_from(now: float, *, days: int) -> Iterator[tuple[float, float]]:
    """Begin and end of the rest of today, and of the days after it."""
    today = int(now // _DAY)
    yield now, (today + 1) * _DAY
    for day in range(today + 1, today + days):
        yield day * _DAY, (day + 1) * _DAY


def _number(day: str) -> int | None:
    """A day, counted from the epoch."""
    try:
        return date.fromisoformat(day).toordinal() - _EPOCH
    except ValueError:
        return None
