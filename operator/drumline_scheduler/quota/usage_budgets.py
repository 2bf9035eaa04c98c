"""Budgets: what the jobs of a queue may have in a time, in GPU-hours and in money.

A budget is a bound on what is held over time, beside the quota, which is one on what is held at
once. It is a queue's own: what its members of the cohort have does not count, and borrowed GPUs
count as all others. The time is the last days (UTC), today included, so what was had on a day flows
back at a midnight. Or it is a week or a month of the calendar: all is there again with the next,
but for what was had beyond the budget in the one before, which is taken from it. A queue may have
credit then: so much of the next it may take before. No more is taken than a whole budget, and of
what was had still earlier nothing but credit that was never paid back: where the budget is lowered,
or a window becomes a calendar, nobody pays for a time to which it did not apply.

It bounds the GPU-hours of all of its gangs, what these cost by the prices of their pools at the
time, or the GPU-hours of each user, or several of these. Whatever is spent first counts.

Once a budget is spent no pending gang of the queue starts or preempts, and no elastic one grows.
Running gangs go on, lost positions are replaced, and what they hold counts: the overrun is what
runs. They are not moved either, as a gang that leaves its slots would have to wait for them. With
`WhenSpent.EXPIRE` they leave, too (`queue_evictions`); with `WhenSpent.WARN` nothing is kept from
anybody.

Example: 100 GPU-hours in 2 days; 60 on Monday, 50 on Tuesday. On Tuesday 110 are spent, and gangs
wait. At midnight Monday's flow back: 50 are spent on Wednesday, and they start. Of 100 a week, with
110 had in one, 90 are left of the next; with 350, nothing of the next, and all of the one after.
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
"""Ends of periods until nothing is carried on, if nothing more is had: of the present one, of one
that pays for it, and of one that a leader whose clock was ahead has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """What may be had in the time of a budget, in GPU-seconds or in GPU-seconds times prices."""

    whole: int
    credit: int = 0
    text: str
    """What it is, such as `10 GPU-hours`."""
    field: str
    """The field of spec.budget that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """What is had of one bound, by all gangs of a queue or by those of one user."""

    queue: str
    user: str | None
    days: Mapping[int, int]
    bound: _Bound


class Budgets:
    """Which budgets are spent, at one moment.

    Args:
        snapshot: queues, and what they had.
        now: seconds since the epoch.
    """

    def __init__(self, snapshot: Snapshot, *, now: float) -> None:
        self._spent: dict[tuple[str, str | None], tuple[WhenSpent, Rejection]] = {}
        opens: list[float] = []
        for queue in snapshot.queues:
            budget = queue.budget
            if budget is None:
                continue
            for account in _accounts(queue.name, budget=budget, snapshot=snapshot):
                key = (account.queue, account.user)
                if key in self._spent or not _is_reached(account, budget=budget, now=now):
                    continue
                opens.append(_flows_back_at(account, budget=budget, now=now))
                rejection = _rejection(account, budget=budget, now=now, opens_at=opens[-1])
                self._spent[key] = (budget.when_spent, rejection)
        self.retry_at: Final = min(opens, default=None)
        """When time alone may let gangs start: the first midnight at which enough flows back."""
        self.spent: Final = frozenset(self._spent)
        """Queues whose budget is spent, and of those with one for each user the users; None: all.
        """
        self.warns: Final = any(when is WhenSpent.WARN for when, _ in self._spent.values())
        """Whether anything is to be said to gangs that start."""

    def rejection(self, gang: Gang) -> Rejection | None:
        """Why a gang does not start or grow; None: the budget of its queue lets it."""
        when, rejection = self._of(gang)
        return None if when is WhenSpent.WARN else rejection

    def warning(self, gang: Gang) -> str:
        """What is to be said to a gang that starts all the same; empty: nothing."""
        when, rejection = self._of(gang)
        return rejection.message if rejection is not None and when is WhenSpent.WARN else ""

    def expiry(self, gang: Gang) -> Rejection | None:
        """Why a running gang has to leave; None: the budget of its queue lets it."""
        when, rejection = self._of(gang)
        return rejection if when is WhenSpent.EXPIRE else None

    def _of(self, gang: Gang) -> tuple[WhenSpent, Rejection | None]:
        if not self._spent:  # asked for each gang in line
            return WhenSpent.WARN, None
        of_all = self._spent.get((gang.queue, None))
        return of_all or self._spent.get((gang.queue, gang.user)) or (WhenSpent.WARN, None)


def window_gpu_seconds(days: Mapping[int, int], *, budget: Budget, now: float) -> int:
    """GPU-seconds that count against a budget. O(days)."""
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
    """What counts against a bound in the time of a budget. O(days log days).

    Args:
        days: what was had, by day.
        whole: the bound, in the same unit; None: there is none, and nothing is carried on.
        credit: what may be had beyond it, of the next refill.
        budget: whose time it is.
        now: seconds since the epoch.
    """
    today = _day(now)
    if budget.refill is None:
        first = today - budget.window_days + 1
        return sum(had for day, had in days.items() if day >= first)
    # The clock of another leader may be ahead: what it counted is of the last period.
    had = _by_period(days, refill=budget.refill, today=today)
    present, debt, due = _period(today, budget.refill)[0], 0, 0
    for start, amount in had.items():
        if start < present and whole is not None:
            debt = debt if start == due else 0  # a period in which nothing is had pays all
            debt = _carried(amount, debt=debt, whole=whole, credit=credit)
            due = _period(start, budget.refill)[1]
    return had[present] + (debt if present == due else 0)


def _by_period(days: Mapping[int, int], *, refill: Refill, today: int) -> Counter[int]:
    """What was had, by the first day of each week or month, in their order."""
    had: Counter[int] = Counter()
    start = end = 0
    for day, amount in sorted(days.items()):
        if not start <= day < end:
            start, end = _period(min(day, today), refill)
        had[start] += amount
    return had


def _carried(had: int, *, debt: int, whole: int, credit: int) -> int:
    """What of a week or month is taken from the next.

    Args:
        had: in it.
        debt: what was taken from it.
        whole: what may be had in each.
        credit: of the next.
    """
    unpaid = min(credit, had + debt - whole)
    return max(0, min(whole, max(had - whole, unpaid)))


def spent_percents(
    days: Mapping[int, int], *, prices: Mapping[int, int], budget: Budget, now: float
) -> tuple[int, ...]:
    """How much of its GPU-hours and of its cost is spent, in whole percent; 101: it is overrun.

    Args:
        days: GPU-seconds, by day.
        prices: GPU-seconds times prices, by day.
        budget: of a queue.
        now: seconds since the epoch.
    """
    return tuple(
        _percent(account, budget=budget, now=now)
        for account in _accounts_of_all("", budget=budget, days=days, prices=prices)
    )


def held_in(pool: Pool | None, amount: int) -> tuple[Fraction, int]:
    """What is held of a pool in GPUs, and the price of one of them for an hour; 0: not known."""
    if pool is None:
        return Fraction(amount), 0
    return pool.in_gpus(amount), pool.price or 0


def asked_again_at(snapshot: Snapshot, *, queue: str, budget: Budget, now: float) -> float | None:
    """When a budget is to be asked again, if its queue holds what it holds from now on.

    When any of its bounds is reached, or at midnight, when anything may flow back; None: nothing is
    held.
    """
    pools = {pool.name: pool for pool in snapshot.pools}
    gpus: dict[str | None, Fraction] = defaultdict(Fraction)
    priced = Fraction(0)
    for held in snapshot.admitted:
        if held.gang.queue == queue and (held.is_foreign or not held.is_residual):
            amount, price = held_in(pools.get(held.pool), held.gpus)
            gpus[None] += amount
            gpus[held.gang.user] += amount
            priced += amount * price
    if not gpus[None]:
        return None
    moments = [float((_day(now) + 1) * DAY_SECONDS)]
    for account in _accounts(queue, budget=budget, snapshot=snapshot):
        rate = priced if account.bound.field == COST else gpus[account.user]
        bound = account.bound
        left = bound.whole + bound.credit - _counted(account, budget=budget, now=now)
        if rate and left > 0:
            moments.append(now + float(left / rate))
    return min(moments)


def _accounts(queue: str, *, budget: Budget, snapshot: Snapshot) -> Iterator[_Account]:
    """Those of all gangs of a queue first."""
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
    """Those of all gangs of a queue together."""
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
    had = _counted(account, budget=budget, now=now)
    return had >= account.bound.whole + account.bound.credit


def _percent(account: _Account, *, budget: Budget, now: float) -> int:
    return 100 * _counted(account, budget=budget, now=now) // account.bound.whole


def _counted(account: _Account, *, budget: Budget, now: float) -> int:
    bound = account.bound
    return window_amount(
        account.days, whole=bound.whole, credit=bound.credit, budget=budget, now=now
    )


def _flows_back_at(account: _Account, *, budget: Budget, now: float) -> float:
    """O(days log days)."""
    today = _day(now)
    if budget.refill is None:
        had, midnight = 0, today + 1
        for day, amount in sorted(account.days.items(), reverse=True):
            had += amount
            if had >= account.bound.whole:  # with this day it is too much: it has to flow back
                midnight = max(midnight, day + budget.window_days)
                break
        return float(DAY_SECONDS * midnight)
    end = today
    for _ in range(_LONGEST_DEBT):
        _, end = _period(end, budget.refill)
        if not _is_reached(account, budget=budget, now=float(DAY_SECONDS * end)):
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


def _rejection(account: _Account, *, budget: Budget, now: float, opens_at: float) -> Rejection:
    """In whole percent, so that the words change rarely while its jobs run on."""
    percent = _percent(account, budget=budget, now=now)
    date = datetime.fromtimestamp(opens_at, tz=UTC).strftime("%Y-%m-%d")
    back = (
        "enough becomes available again" if budget.refill is None else "enough is available again"
    )
    raised = f"budget.{account.bound.field} of the queue is raised"
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
