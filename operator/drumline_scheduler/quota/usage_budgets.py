"""Budgets: limits on the GPU-hours and the money that the jobs of a queue use in a period.

A quota limits the GPUs held at a time, and a budget limits the use over time. A budget belongs to
one queue. Other members of its cohort do not count, and borrowed GPUs count like any others.

The period is one of two kinds:

* Window: the last N days (UTC), including today. The use of a day becomes available again N days
  later, at midnight.
* Calendar: a week or month. Each period starts with the whole budget, minus the overrun of the
  period before it. A queue may have credit: it may take GPU-hours from the next period in advance.

At most a whole budget is deducted from a period. Of earlier periods, only credit that was never
paid back is carried over. So after a budget is lowered, or a window becomes a calendar, a queue
does not pay for a time to which the budget did not apply.

A budget limits the GPU-hours of all gangs, or their cost by the prices of their pools at the time,
or the GPU-hours of each user. It may limit several of these, and the first one spent counts.

Once a budget is spent, no pending gang of the queue starts or preempts, and no elastic gang grows.
Running gangs continue, their lost positions are replaced, and their use counts, so they may overrun
the budget. They are not moved either, because a gang that leaves its slots would have to wait for
them. With `WhenSpent.EXPIRE` running gangs leave (`queue_evictions`). With `WhenSpent.WARN` jobs
still start.

Example of a window: 100 GPU-hours in 2 days, 60 used on Monday and 50 on Tuesday. On Tuesday 110
are spent, and gangs wait. At midnight Monday's use leaves the window. On Wednesday 50 are spent,
and gangs start.

Example of a calendar: 100 GPU-hours a week. After a week with 110, the next week has 90. After a
week with 350, the next week has 0, and the week after it has 100.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

from drumline_api.money import money_text
from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import (
    DAY_SECONDS,
    HOUR_SECONDS,
    Budget,
    Gang,
    Pool,
    Refill,
    Snapshot,
    WhenSpent,
)
from drumline_scheduler.rejections import Rejection, counted

_TIME: Final = Remedy(kind=RemedyKind.WAIT)
COST: Final = "cost"
_LONGEST_DEBT: Final = 3
"""Number of period ends after which no debt remains without further use. These are the ends of the
present period, of one that pays for it, and of one begun by a leader with a fast clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """One limit of a budget, in GPU-seconds or in GPU-seconds times prices."""

    whole: int
    credit: int = 0
    text: str
    """The limit as text, such as `10 GPU-hours`."""
    field: str
    """The field of spec.budget that sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """The use that counts against one limit, by all gangs of a queue or by one user."""

    queue: str
    user: str | None
    days: Mapping[int, int]
    bound: _Bound


class Budgets:
    """The budgets that are spent at one moment.

    Args:
        snapshot: queues and their use.
        now: seconds since the epoch.
    """

    def __init__(self, snapshot: Snapshot, *, now: float) -> None:
        self._spent: dict[tuple[str, str | None], tuple[WhenSpent, Rejection]] = {}
        opens: list[float] = []
        for queue in snapshot.queues:
            budget = queue.budget
            if budget is None:
                continue
            # The first spent limit of a queue or user is its reason. The limits
            # of the whole queue come first.
            for account in _accounts(queue.name, budget=budget, snapshot=snapshot):
                key = (account.queue, account.user)
                if key in self._spent or not _is_reached(account, budget=budget, now=now):
                    continue
                opens.append(_flows_back_at(account, budget=budget, now=now))
                rejection = _rejection(account, budget=budget, now=now, opens_at=opens[-1])
                self._spent[key] = (budget.when_spent, rejection)
        self.retry_at: Final = min(opens, default=None)
        """Time at which gangs may start without other events: the first midnight at which enough
        becomes available."""
        self.spent: Final = frozenset(self._spent)
        """Queues whose budget is spent, with the user if the limit is for each user. None: all
        users."""
        self.warns: Final = any(when is WhenSpent.WARN for when, _ in self._spent.values())
        """True if gangs that start get a warning."""

    def rejection(self, gang: Gang) -> Rejection | None:
        """Return why a gang does not start or grow; None if the budget of its queue allows it."""
        when, rejection = self._of(gang)
        return None if when is WhenSpent.WARN else rejection

    def warning(self, gang: Gang) -> str:
        """Return the warning for a gang that starts on a spent budget; '' if there is none."""
        when, rejection = self._of(gang)
        return rejection.message if rejection is not None and when is WhenSpent.WARN else ""

    def expiry(self, gang: Gang) -> Rejection | None:
        """Return why a running gang has to leave; None if its queue's budget allows it to run."""
        when, rejection = self._of(gang)
        return rejection if when is WhenSpent.EXPIRE else None

    def _of(self, gang: Gang) -> tuple[WhenSpent, Rejection | None]:
        if not self._spent:  # asked for each gang in line
            return WhenSpent.WARN, None
        of_all = self._spent.get((gang.queue, None))
        return of_all or self._spent.get((gang.queue, gang.user)) or (WhenSpent.WARN, None)


def window_gpu_seconds(days: Mapping[int, int], *, budget: Budget, now: float) -> int:
    """Return the GPU-seconds that count against a budget. O(days).

    Args:
        days: GPU-seconds by day since 1970-01-01 UTC.
        budget: length or calendar period of the window.
        now: Unix time in seconds.
    """
    whole = None if budget.gpu_hours is None else budget.gpu_hours * HOUR_SECONDS
    credit = budget.credit_gpu_hours * HOUR_SECONDS
    return window_amount(days, whole=whole, credit=credit, budget=budget, now=now)


def window_amount(
    days: Mapping[int, int],
    *,
    whole: int | None,
    credit: int = 0,
    budget: Budget,
    now: float,
) -> int:
    """Return the use that counts against a limit in the period of a budget. O(days log days).

    Args:
        days: use by day.
        whole: the limit, in the same unit; None: no limit, so nothing is carried over.
        credit: use above the limit that is taken from the next period.
        budget: the budget with the period.
        now: seconds since the epoch.
    """
    today = _day(now)
    if budget.refill is None:
        first = today - budget.window_days + 1
        return sum(used for day, used in days.items() if day >= first)
    # The clock of another leader may be ahead: its use counts in the present period.
    used = _by_period(days, refill=budget.refill, today=today)
    # Carry the debt from period to period. It is due in the period right after the overrun.
    present, debt, due = _period(today, budget.refill)[0], 0, 0
    for start, amount in used.items():
        if start < present and whole is not None:
            debt = debt if start == due else 0  # a period without use pays all
            debt = _carried(amount, debt=debt, whole=whole, credit=credit)
            due = _period(start, budget.refill)[1]
    return used[present] + (debt if present == due else 0)


def _by_period(days: Mapping[int, int], *, refill: Refill, today: int) -> Counter[int]:
    """Return the use by the first day of each week or month, in their order."""
    used: Counter[int] = Counter()
    start = end = 0
    for day, amount in sorted(days.items()):
        if not start <= day < end:
            start, end = _period(min(day, today), refill)
        used[start] += amount
    return used


def _carried(used: int, *, debt: int, whole: int, credit: int) -> int:
    """Return the use of a week or month that is deducted from the next one.

    Args:
        used: use in it.
        debt: use of the one before that was deducted from it.
        whole: limit of each period.
        credit: credit of each period.
    """
    # The overrun of this period counts in full. Of older debt only credit
    # that was never paid back does.
    unpaid = min(credit, used + debt - whole)
    return max(0, min(whole, max(used - whole, unpaid)))


def spent_percents(
    days: Mapping[int, int], *, prices: Mapping[int, int], budget: Budget, now: float
) -> tuple[int, ...]:
    """Return the spent part of the GPU-hours and of the cost, in whole percent; 101: overrun.

    Args:
        days: GPU-seconds, by day.
        prices: GPU-seconds times prices, by day.
        budget: budget of a queue.
        now: seconds since the epoch.
    """
    return tuple(
        _percent(account, budget=budget, now=now)
        for account in _accounts_of_all("", budget=budget, days=days, prices=prices)
    )


def held_in(pool: Pool | None, amount: int) -> tuple[Fraction, int]:
    """Return an amount of a pool in GPUs, and the price of one GPU-hour; 0: price not known."""
    if pool is None:
        return Fraction(amount), 0
    return pool.in_gpus(amount), pool.price or 0


def next_check_at(snapshot: Snapshot, *, queue: str, budget: Budget, now: float) -> float | None:
    """Return when to check a budget again if its queue keeps holding the same.

    None if it holds nothing. Otherwise this is the time at which one of its limits is reached, or
    the next midnight, at which use may become available.

    Args:
        snapshot: gangs that hold GPUs.
        queue: name of the queue.
        budget: the limits to reach.
        now: Unix time in seconds.
    """
    pools = {pool.name: pool for pool in snapshot.pools}
    gpus: dict[str | None, Fraction] = defaultdict(Fraction)
    priced = Fraction(0)
    # Residuals of jobs are not charged, but foreign pods are.
    for held in snapshot.admitted:
        if held.gang.queue == queue and (held.is_foreign or not held.is_residual):
            amount, price = held_in(pools.get(held.pool), held.gpus)
            gpus[None] += amount
            gpus[held.gang.user] += amount
            priced += amount * price
    if not gpus[None]:
        return None
    # GPU-seconds until each limit divided by the GPUs held, or by their cost for each hour.
    moments = [float((_day(now) + 1) * DAY_SECONDS)]
    for account in _accounts(queue, budget=budget, snapshot=snapshot):
        rate = priced if account.bound.field == COST else gpus[account.user]
        bound = account.bound
        left = bound.whole + bound.credit - _counted(account, budget=budget, now=now)
        if rate and left > 0:
            moments.append(now + float(left / rate))
    return min(moments)


def _accounts(queue: str, *, budget: Budget, snapshot: Snapshot) -> Iterator[_Account]:
    """Yield the accounts of a queue, those of all its gangs first, then those of each user."""
    yield from _accounts_of_all(
        queue,
        budget=budget,
        days=snapshot.spent.get(queue, {}),
        prices=snapshot.spent_prices.get(queue, {}),
    )
    if budget.user_gpu_hours is not None:
        bound = _Bound(
            whole=budget.user_gpu_hours * HOUR_SECONDS,
            text=counted(budget.user_gpu_hours, "GPU-hour"),
            field="userGpuHours",
        )
        for user, days in snapshot.spent_by_user.get(queue, {}).items():
            yield _Account(queue=queue, user=user, days=days, bound=bound)


def _accounts_of_all(
    queue: str, *, budget: Budget, days: Mapping[int, int], prices: Mapping[int, int]
) -> Iterator[_Account]:
    """Yield the accounts of all gangs of a queue together."""
    if budget.gpu_hours is not None:
        bound = _Bound(
            whole=budget.gpu_hours * HOUR_SECONDS,
            credit=budget.credit_gpu_hours * HOUR_SECONDS,
            text=counted(budget.gpu_hours, "GPU-hour"),
            field="gpuHours",
        )
        yield _Account(queue=queue, user=None, days=days, bound=bound)
    if budget.cost is not None:
        bound = _Bound(whole=budget.cost * HOUR_SECONDS, text=money_text(budget.cost), field=COST)
        yield _Account(queue=queue, user=None, days=prices, bound=bound)


def _is_reached(account: _Account, *, budget: Budget, now: float) -> bool:
    used = _counted(account, budget=budget, now=now)
    return used >= account.bound.whole + account.bound.credit


def _percent(account: _Account, *, budget: Budget, now: float) -> int:
    return 100 * _counted(account, budget=budget, now=now) // account.bound.whole


def _counted(account: _Account, *, budget: Budget, now: float) -> int:
    bound = account.bound
    return window_amount(
        account.days, whole=bound.whole, credit=bound.credit, budget=budget, now=now
    )


def _flows_back_at(account: _Account, *, budget: Budget, now: float) -> float:
    """Return the midnight at which a spent limit has room again. O(days log days)."""
    today = _day(now)
    if budget.refill is None:
        # Window: from today backwards, find the day whose use must leave the window first.
        used, midnight = 0, today + 1
        for day, amount in sorted(account.days.items(), reverse=True):
            used += amount
            if used >= account.bound.whole:  # with this day it is too much: it has to flow back
                midnight = max(midnight, day + budget.window_days)
                break
        return float(DAY_SECONDS * midnight)
    # Calendar: the first period that starts with some budget, after debts are deducted.
    end = today
    for _ in range(_LONGEST_DEBT):
        _, end = _period(end, budget.refill)
        if not _is_reached(account, budget=budget, now=float(DAY_SECONDS * end)):
            break
    return float(DAY_SECONDS * end)


def _period(day: int, refill: Refill) -> tuple[int, int]:
    """Return the first day of the week or month of a day, and of the one after it."""
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


def _rejection(account: _Account, *, budget: Budget, now: float, opens_at: float) -> Rejection:
    """Return the rejection of a spent limit.

    It states whole percent, so that the message changes rarely while jobs run.
    """
    percent = _percent(account, budget=budget, now=now)
    date = datetime.fromtimestamp(opens_at, tz=UTC).strftime("%Y-%m-%d")
    back = (
        "enough becomes available again" if budget.refill is None else "enough is available again"
    )
    raised = f"budget.{account.bound.field} of the queue is raised"
    # The consequence depends on `whenSpent`, and the wording on the kind of period.
    then = {
        WhenSpent.REFUSE: f"its jobs start when {back}, on {date} (UTC) at the earliest, or when"
        f" {raised}",
        WhenSpent.WARN: "its jobs still start",
        WhenSpent.EXPIRE: f"its jobs save and wait until {back}, on {date} (UTC) at the earliest,"
        f" or until {raised}",
    }[budget.when_spent]
    spender, budget_words = f"queue {account.queue}", "its budget"
    if account.user is not None:
        spender = f"user {account.user!r} of queue {account.queue}"
        budget_words, then = "their budget", then.replace("its jobs", "their jobs")
    return Rejection(
        reason=BlockReason.BUDGET_SPENT,
        message=f"{spender} has used {percent} % of {budget_words} of {account.bound.text}"
        f" {_time(budget)}: {then}",
        remedy=_TIME,
    )


def _time(budget: Budget) -> str:
    match budget.refill:
        case None:
            return f"in {counted(budget.window_days, 'day')}"
        case Refill.WEEKLY:
            return "a week"
        case Refill.MONTHLY:
            return "a month"


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)
