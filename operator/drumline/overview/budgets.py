"""What is left of a queue's budget: day by day until now, and as it goes on from here.

The operator's tally (`status.budget.days`) has GPU-seconds by day. The window is the last days
(UTC), today included, so what was had on a day flows back at a midnight. What is expected is by
what the queue holds now, and nothing else: no job ends, none starts.

Example: 100 GPU-hours in 2 days; 60 on Monday, 30 on Tuesday until noon, 2 GPUs held. On Tuesday at
17:00 it is spent; at midnight Monday's flow back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Final

from drumline.overview.objects import QueueObject, SpentOfBudget, seconds
from drumline.overview.rows import BudgetDay, BudgetRow, QuotaRow

_DAY: Final = 86_400.0
_HOUR: Final = 3600.0
_MOST_DAYS: Final = 92
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
    )
    if spent is None or not 1 <= budget.window_days <= _MOST_DAYS:
        return row
    gpus = sum(quota.used_gpus for quota in quotas)
    return _with_days(row, _SpentDays(spent, gpus=gpus, now=now), now=now)


class _SpentDays:
    """GPU-seconds by day, to `now` and beyond it at what is held now."""

    def __init__(self, spent: SpentOfBudget, *, gpus: int, now: float) -> None:
        self._gpus = gpus
        self._until = min(seconds(spent.until) or now, now)
        self._days: Mapping[int, int] = {
            number: day.gpu_seconds
            for day in (spent.days or ())[:_MOST_DAYS]
            if (number := _number(day.day)) is not None
        }

    def of_window(self, moment: float, *, days: int) -> float:
        """What was or will be had by this moment in the days that count then."""
        today = int(moment // _DAY)
        known = sum(amount for day, amount in self._days.items() if today - days < day <= today)
        begins = max(self._until, (today - days + 1) * _DAY)
        return known + self._gpus * max(0.0, moment - begins)


def _with_days(row: BudgetRow, tally: _SpentDays, *, now: float) -> BudgetRow:
    whole, days = row.gpu_hours * _HOUR, row.window_days
    today = int(now // _DAY)

    present = tally.of_window(now, days=days)

    def left(moment: float) -> float:
        return round((whole - tally.of_window(moment, days=days)) / _HOUR, 1)

    def day_ends(first: int, last: int) -> tuple[BudgetDay, ...]:
        """What is left a second before each of these days is over."""
        ends = ((day + 1) * _DAY for day in range(first, last))
        return tuple(BudgetDay(at=end, left_gpu_hours=left(end - 1)) for end in ends)

    return BudgetRow(
        gpu_hours=row.gpu_hours,
        window_days=days,
        spent_gpu_hours=row.spent_gpu_hours,
        left=(
            *day_ends(today - days + 1, today),
            BudgetDay(at=now, left_gpu_hours=left(now)),
        ),
        expected=day_ends(today, today + days),
        spent_at=None if present >= whole else _spent_at(tally, whole, days=days, now=now),
        back_at=_back_at(tally, whole, days=days, now=now) if present >= whole else None,
    )


def _spent_at(tally: _SpentDays, whole: float, *, days: int, now: float) -> float | None:
    """The first moment within the window's length at which all is spent."""
    for begins, ends in _days_from(now, days=days):
        first, last = (tally.of_window(moment, days=days) for moment in (begins, ends - 1))
        if first >= whole:
            return begins
        if last >= whole:
            return begins + (whole - first) / (last - first) * (ends - 1 - begins)
    return None


def _back_at(tally: _SpentDays, whole: float, *, days: int, now: float) -> float | None:
    """The first midnight at which less than all is spent."""
    for _, midnight in _days_from(now, days=days):
        if tally.of_window(midnight, days=days) < whole:
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
