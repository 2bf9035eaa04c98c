"""Remaining budget of a queue: day by day until now, and the expectation.

The operator's tally (`status.budget`) has GPU-seconds by day, their cost, and those of users with
their own limit. The window is the last days (UTC), including today, so the use of a day becomes
available again at a midnight. Or the calendar refills the budget, except for the overrun of the
week or month before, as the scheduler carries it over (`scheduler.quota.usage_budgets`). The
expectation assumes that the tally keeps its present rates: no job ends or starts, and no price
changes.

Example: 100 GPU-hours in 2 days. 60 are used on Monday, 30 on Tuesday until noon, and 2 GPUs are
held. The budget is spent on Tuesday at 17:00. Monday's hours are available again at midnight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Final

import msgspec

from drumline.overview.objects import seconds
from drumline.overview.rows import (
    BudgetDay,
    BudgetRow,
    MoneyDay,
    MoneyOutlook,
    UserBudgetRow,
)
from drumline_api.money import MILLIONTHS, amount
from drumline_api.objects.custom import (
    StoredBudgetUse,
    StoredDayOfUse,
    StoredQueueBudget,
    StoredTrainingQueue,
    StoredUseOfUser,
)
from drumline_contract import plain

_DAY: Final = 86_400.0
_HOUR: Final = 3600.0
# The API allows 92 days. A longer list was not written by this operator.
_MOST_DAYS: Final = 92
# The longest month: every calendar period lies within these days.
_REFILL_DAYS: Final = {"Weekly": 7, "Monthly": 31}
"""Days to look back and ahead if the calendar refills a budget."""
_EPOCH: Final = date(1970, 1, 1).toordinal()


def budget_row(queue: StoredTrainingQueue | None, *, now: float) -> BudgetRow | None:
    """Return the budget of a queue with its present and expected use, or None.

    Args:
        queue: the queue as the operator last wrote it.
        now: seconds since the epoch.
    """
    # Fields of an older operator may be absent, so each one has a default.
    if queue is None or queue.spec.budget is None:
        return None
    budget, spent = queue.spec.budget, queue.status.budget
    row = BudgetRow(
        gpu_hours=budget.gpu_hours or 0,
        window_days=budget.window_days or 0,
        spent_gpu_hours=0 if spent is None else spent.spent_gpu_hours,
        refill=plain(budget.refill or ""),
        credit_gpu_hours=budget.credit_gpu_hours or 0,
        when_spent=plain(budget.when_spent),
        cost=plain(budget.cost or ""),
        spent_cost="" if spent is None else plain(spent.spent_cost or ""),
        user_gpu_hours=budget.user_gpu_hours or 0,
    )
    days = _length_days(budget)
    # Without a tally or a valid length, only the limits are shown.
    if spent is None or not 1 <= days <= _MOST_DAYS:
        return row
    if budget.gpu_hours:
        row = _with_hours(row, spent, budget=budget, now=now)
    return msgspec.structs.replace(
        row,
        money=_money(spent, budget=budget, now=now),
        users=tuple(
            _user(use, spent, budget=budget, now=now)
            for use in (spent.users or ())
            if budget.user_gpu_hours
        ),
    )


def spent_by_user(queue: StoredTrainingQueue) -> dict[str, float]:
    """GPU-hours that count of each user as of the operator's last look, where a budget limits them.

    They are those of the row, without what was held since then.
    """
    budget, spent = queue.spec.budget, queue.status.budget
    # `until` is the operator's last look. Without it, days cannot be placed.
    until = None if spent is None else seconds(spent.until)
    if budget is None or spent is None or until is None or not budget.user_gpu_hours:
        return {}
    if not 1 <= _length_days(budget) <= _MOST_DAYS:
        return {}
    return {
        plain(use.user): _Outlook(
            # Rate 0 and `now` = `until`: nothing is added to what the operator has counted.
            _SpentDays.of(use.days, rate=0.0, until=spent.until),
            budget=budget,
            whole=budget.user_gpu_hours * _HOUR,
            now=until,
        ).used
        / _HOUR
        for use in spent.users or ()
    }


def _with_hours(
    row: BudgetRow, spent: StoredBudgetUse, *, budget: StoredQueueBudget, now: float
) -> BudgetRow:
    outlook = _Outlook(
        _SpentDays.of(spent.days, rate=_rate(spent), until=spent.until),
        budget=budget,
        whole=(budget.gpu_hours or 0) * _HOUR,
        credit=(budget.credit_gpu_hours or 0) * _HOUR,
        now=now,
    )

    # One decimal of GPU-hours, because charts have no finer resolution.
    def days(moments: Iterable[tuple[float, float]]) -> tuple[BudgetDay, ...]:
        return tuple(
            BudgetDay(at=at, left_gpu_hours=round(left / _HOUR, 1)) for at, left in moments
        )

    return msgspec.structs.replace(
        row,
        left=days(outlook.left()),
        expected=days(outlook.expected()),
        spent_at=outlook.spent_at(),
        back_at=outlook.back_at(),
    )


def _money(spent: StoredBudgetUse, *, budget: StoredQueueBudget, now: float) -> MoneyOutlook | None:
    whole = _currency(budget.cost)
    if not whole:
        return None
    # Cost and GPU-seconds come from the same days, but a day may lack a price.
    used = {
        number: _currency(day.cost)
        for day in (spent.days or ())[:_MOST_DAYS]
        if (number := _number(day.day)) is not None
    }
    rate = _currency(spent.cost_per_hour) / _HOUR
    until = seconds(spent.until)
    # Money uses the same outlook: only unit and rate differ.
    outlook = _Outlook(
        _SpentDays(days=used, rate=rate, until=until), budget=budget, whole=whole, now=now
    )

    def days(moments: Iterable[tuple[float, float]]) -> tuple[MoneyDay, ...]:
        return tuple(MoneyDay(at=at, left=round(left, 2)) for at, left in moments)

    return MoneyOutlook(
        left=days(outlook.left()),
        expected=days(outlook.expected()),
        spent_at=outlook.spent_at(),
        back_at=outlook.back_at(),
    )


def _user(
    use: StoredUseOfUser, spent: StoredBudgetUse, *, budget: StoredQueueBudget, now: float
) -> UserBudgetRow:
    outlook = _Outlook(
        _SpentDays.of(use.days, rate=_rate(use), until=spent.until),
        budget=budget,
        whole=(budget.user_gpu_hours or 0) * _HOUR,
        now=now,
    )
    return UserBudgetRow(
        user=plain(use.user),
        spent_gpu_hours=round(outlook.used / _HOUR, 1),
        spent_at=outlook.spent_at(),
        back_at=outlook.back_at(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpentDays:
    """An amount by day, to a moment and beyond it at what is held there."""

    days: Mapping[int, float]
    rate: float
    """A second."""
    until: float | None
    """Up to when `days` count; None: up to now."""

    @classmethod
    def of(
        cls, days: Iterable[StoredDayOfUse] | None, *, rate: float, until: str | None
    ) -> _SpentDays:
        """GPU-seconds."""
        used = {
            number: float(day.gpu_seconds)
            for day in list(days or ())[:_MOST_DAYS]
            if (number := _number(day.day)) is not None
        }
        return cls(days=used, rate=rate, until=seconds(until))

    def used(self, first: int, until: float, *, now: float) -> float:
        """Return the past or expected use from a day on until a moment."""
        # `day < until / day length` includes the day of the moment itself.
        known = sum(amount for day, amount in self.days.items() if first <= day < until / _DAY)
        # A tally from a clock ahead of ours must not count negative time.
        since = min(now if self.until is None else self.until, now)
        # The rate counts from the first day at the earliest, so earlier use is not added.
        return known + self.rate * max(0.0, until - max(since, first * _DAY))


class _Outlook:
    """Remaining amount of one budget until `now` and beyond it."""

    def __init__(
        self,
        spent: _SpentDays,
        *,
        budget: StoredQueueBudget,
        whole: float,
        now: float,
        credit: float = 0.0,
    ) -> None:
        self._spent = spent
        self._budget = budget
        self._whole = whole
        self._credit = credit
        self._now = now
        # Days are numbers since the epoch in UTC, as the operator counts them.
        self._today = int(now // _DAY)
        self._length = _length_days(budget)
        # Needed by all methods, so it is computed once.
        self.used: Final = self._counted(now)
        """Use that counts now."""

    @property
    def _bound(self) -> float:
        return self._whole + self._credit

    def left(self) -> tuple[tuple[float, float], ...]:
        """Return moments with the amount left: a second before the end of each day, and now."""
        return (
            *self._day_ends(self._today - self._length + 1, self._today),
            (self._now, self._whole - self.used),
        )

    def expected(self) -> tuple[tuple[float, float], ...]:
        """Return the same for the coming days."""
        return self._day_ends(self._today, self._today + self._length)

    def spent_at(self) -> float | None:
        """Return the first moment in the window's length at which the budget is spent.

        None if it is spent now, or if it will not be spent in that time.
        """
        # A budget with a credit is spent only when the credit is used too.
        if self.used >= self._bound:
            return None
        # Within a day the use grows linearly, so one division finds the moment.
        for begins, ends in self._days_from_now():
            # A second before midnight, because the midnight itself belongs to the next day.
            first, last = self._counted(begins), self._counted(ends - 1)
            # The budget may be spent at midnight, when a carried overrun is added.
            if first >= self._bound:
                return begins
            if last >= self._bound:
                return begins + (self._bound - first) / (last - first) * (ends - 1 - begins)
        return None

    def back_at(self) -> float | None:
        """Return the first midnight at which the budget is not spent any more.

        None if it is not spent, or if it stays spent.
        """
        if self.used < self._bound:
            return None
        # Use becomes available only at midnights, so only these are tried.
        midnights = (midnight for _, midnight in self._days_from_now())
        return next((each for each in midnights if self._counted(each) < self._bound), None)

    def _day_ends(self, first: int, last: int) -> tuple[tuple[float, float], ...]:
        ends = ((day + 1) * _DAY for day in range(first, last))
        return tuple((end, self._whole - self._counted(end - 1)) for end in ends)

    def _days_from_now(self) -> Iterator[tuple[float, float]]:
        """Begin and end of the rest of today, and of the days after it."""
        yield self._now, (self._today + 1) * _DAY
        for day in range(self._today + 1, self._today + self._length):
            yield day * _DAY, (day + 1) * _DAY

    def _counted(self, moment: float) -> float:
        """Return the use that counts, or will count, against the budget at this moment."""
        today, refill = int(moment // _DAY), self._budget.refill
        # A sliding window: the use of the last days counts.
        if refill is None or refill not in _REFILL_DAYS:
            return self._used(today - self._length + 1, moment)
        # A calendar budget: overruns are carried from period to period, from the oldest known day.
        start, debt = _refill_before(min((*self._spent.days, today)), refill), 0.0
        while True:
            end = _refill_after(start, refill)
            used = self._used(start, min(moment, end * _DAY))
            # The period of the moment. Later periods have no use yet.
            if end > today:
                return used + debt
            start, debt = end, self._carried(used, debt)

    def _used(self, first: int, until: float) -> float:
        return self._spent.used(first, until, now=self._now)

    def _carried(self, used: float, debt: float) -> float:
        """Return the overrun of a week or month that is deducted from the next one.

        Args:
            used: use in the period.
            debt: overrun that was deducted from the period.
        """
        # The credit lends the next refill, so its use is a debt of the next period.
        unpaid = min(self._credit, used + debt - self._whole)
        # At most one whole refill is deducted.
        return max(0.0, min(self._whole, max(used - self._whole, unpaid)))


def _refill_before(day: int, refill: str) -> int:
    """Return the last day, including this one, on which the budget was refilled.

    A Monday, or the first of a month.
    """
    moment = date.fromordinal(day + _EPOCH)
    # Weeks begin on Monday, as in ISO 8601.
    return day - (moment.weekday() if refill == "Weekly" else moment.day - 1)


def _refill_after(day: int, refill: str) -> int:
    """Return the day of the next refill after this one."""
    # 31 days from the first of a month always reach the next month, and never the one after it.
    return _refill_before(day + 7 if refill == "Weekly" else day + 31, refill)


def _length_days(budget: StoredQueueBudget) -> int:
    """Return how many days back and ahead count, 0 if the budget does not say."""
    return _REFILL_DAYS.get(budget.refill or "", budget.window_days or 0)


def _rate(use: StoredBudgetUse | StoredUseOfUser) -> float:
    """Return the GPU-seconds that are spent in a second."""
    return (use.gpu_seconds_per_hour or 0) / _HOUR


def _number(day: str) -> int | None:
    """Return a day counted from the epoch, or None if the text is not a date."""
    try:
        return date.fromisoformat(day).toordinal() - _EPOCH
    except ValueError:
        return None


def _currency(text: str | None) -> float:
    """Return an amount of money, or 0 if the text is not one."""
    try:
        return amount(text or "") / MILLIONTHS
    except ValueError:
        return 0.0
