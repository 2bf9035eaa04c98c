"""The tally of one queue with a budget: use by day, and its form in the queue's status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fractions import Fraction
from typing import Any, Final, cast

from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.load import ApiError, parse
from drumline_api.money import amount, exact_text
from drumline_api.queuebudget import MAX_USERS, BudgetUse
from drumline_scheduler.model import DAY_SECONDS, HOUR_SECONDS, Budget
from drumline_scheduler.quota.usage_budgets import window_amount, window_gpu_seconds

KEPT_DAYS: Final = 92
"""The length of the longest window. A shorter window may be made longer later."""
KEPT_USERS: Final = 512
"""Users without GPUs whose use is kept. Users that hold GPUs are always kept."""

_NOTHING: Final = Fraction(0)

Json = Mapping[str, Any]


@dataclass(slots=True)
class Amount:
    """An amount that grows at a rate, such as GPU-seconds."""

    exact_days: dict[int, Fraction] = field(default_factory=dict[int, Fraction])
    """Exact use by day. Days are counted from the epoch."""
    rate: Fraction = _NOTHING
    """Growth per second by jobs."""
    foreign_rate: Fraction = _NOTHING
    """Growth per second by foreign pods. They have no account that reports their use later."""

    @classmethod
    def of(cls, days: Mapping[int, int]) -> Amount:
        """Return an amount with the use by day of a status."""
        return cls(exact_days={day: Fraction(had) for day, had in days.items()})

    @property
    def days(self) -> Mapping[int, int]:
        """Return the use by day, each rounded to a whole number."""
        return {day: round(had) for day, had in self.exact_days.items()}

    def charge(self, had: Fraction, *, since: int, until: int) -> None:
        """Add the use of a time span, divided over its days.

        Args:
            had: use by jobs. Foreign pods add their rate times the span.
            since: start of the span, in seconds since the epoch.
            until: end of the span.
        """
        # The clock of another leader may be ahead, so the span may be negative.
        had += self.foreign_rate * max(0, until - since)
        days = self.exact_days
        if had:
            for day, part in _by_day(had, since=since, until=until):
                days[day] = days.get(day, _NOTHING) + part
        first = max(since, until) // DAY_SECONDS - KEPT_DAYS + 1
        if days and min(days) < first:  # what was had then counts no more
            self.exact_days = {day: part for day, part in days.items() if day >= first}

    @property
    def whole_rate(self) -> Fraction:
        """Return the growth per second by jobs and foreign pods."""
        return self.rate + self.foreign_rate

    def per_hour(self) -> dict[str, int]:
        """Return the status field for GPU-seconds per hour, or no field at rate 0."""
        rate = self.whole_rate
        return {"gpuSecondsPerHour": round(rate * HOUR_SECONDS)} if rate else {}

    def spent(self, *, since: int, until: int) -> Mapping[int, int]:
        """Return the use by day if the rate stays the same until `until`."""
        more = self.whole_rate * max(0, until - since)
        days = dict(self.exact_days)
        for day, part in _by_day(more, since=since, until=until) if more else ():
            days[day] = days.get(day, _NOTHING) + part
        return {day: round(had) for day, had in days.items()}


@dataclass(slots=True)
class Tally:
    """Use by the jobs of one queue, and by the foreign pods that it pays for, until `at`."""

    at: int
    """Whole seconds since the epoch."""
    gpus: Amount = field(default_factory=Amount)
    """GPU-seconds."""
    priced: Amount = field(default_factory=Amount)
    """GPU-seconds times prices, in millionths."""
    users: dict[str, Amount] = field(default_factory=dict[str, Amount])
    """GPU-seconds by user, if the budget limits each user."""

    def drop_users(self, budget: Budget, *, now: float) -> None:
        """Forget users without any use, and those with the lowest use among too many. O(users).

        Users that hold GPUs are kept.
        """
        idle = {user: had for user, had in self.users.items() if not had.rate}
        kept = {user: had for user, had in idle.items() if had.exact_days}
        if len(kept) > KEPT_USERS:
            most = _most(kept, count=KEPT_USERS, budget=budget, now=now)
            kept = {user: kept[user] for user in most}
        for user in idle.keys() - kept.keys():
            del self.users[user]


def budget_document(tally: Tally, *, budget: Budget, now: float) -> dict[str, Any]:
    """Return `status.budget` of a queue.

    Args:
        tally: GPU-seconds and cost by day.
        budget: the queue's budget.
        now: Unix time in seconds.
    """
    # GPU-hours are always reported, also for a budget of money.
    seconds = window_gpu_seconds(tally.gpus.days, budget=budget, now=now)
    document: dict[str, Any] = {
        "spentGpuHours": seconds // HOUR_SECONDS,
        "until": timestamp(tally.at),
        "days": [
            {"day": _date(day).isoformat(), "gpuSeconds": had}
            for day, had in sorted(tally.gpus.days.items())
        ],
        **tally.gpus.per_hour(),
    }
    # Money: use is stored as GPU-seconds times a price per GPU-hour, so divide by an hour.
    if budget.cost is not None:
        whole = budget.cost * HOUR_SECONDS
        priced = window_amount(tally.priced.days, whole=whole, budget=budget, now=now)
        document["spentCost"] = exact_text(priced // HOUR_SECONDS)
        if tally.priced.whole_rate:  # of GPUs times prices of an hour
            document["costPerHour"] = exact_text(round(tally.priced.whole_rate))
        for entry in document["days"]:
            if had := tally.priced.days.get(_day_of(entry["day"]), 0):
                entry["cost"] = exact_text(had // HOUR_SECONDS)
    # Users, only if each of them has a limit.
    if budget.user_gpu_hours is not None:
        document["users"] = _user_documents(tally, budget=budget, now=now)
    return document


def _user_documents(tally: Tally, *, budget: Budget, now: float) -> list[dict[str, Any]]:
    """Return the entries of the users with the highest use, sorted by name."""
    users = {user: had for user, had in tally.users.items() if had.exact_days}
    return [
        {
            "user": user,
            "days": [
                {"day": _date(day).isoformat(), "gpuSeconds": had}
                for day, had in sorted(users[user].days.items())
            ],
            **users[user].per_hour(),
        }
        for user in sorted(_most(users, count=MAX_USERS, budget=budget, now=now))
    ]


def _most(users: Mapping[str, Amount], *, count: int, budget: Budget, now: float) -> list[str]:
    """Return users by use in the current window, highest first, then by use in all days."""
    whole = (budget.user_gpu_hours or 0) * HOUR_SECONDS

    def rank(user: str) -> tuple[int, int, str]:
        days = users[user].days
        counted = window_amount(days, whole=whole, budget=budget, now=now)
        return -counted, -sum(days.values()), user

    return sorted(users, key=rank)[:count]


def _by_day(had: Fraction, *, since: int, until: int) -> Iterable[tuple[int, Fraction]]:
    """Divide an amount evenly over a time span, by day.

    A span of length 0 puts all of it on its last day.
    """
    if until <= since:
        return ((max(since, until) // DAY_SECONDS, had),)
    parts: list[tuple[int, Fraction]] = []
    left, at = had, since
    while at < until:
        # The last part takes the remainder, so that the parts add up exactly.
        day = at // DAY_SECONDS
        end = min(until, (day + 1) * DAY_SECONDS)
        part = left if end == until else had * (end - at) / (until - since)
        parts.append((day, part))
        left, at = left - part, end
    return parts


def tally_of(raw: object) -> Tally | None:
    """Return the tally in `status.budget`, or None if there is none or it cannot be read."""
    if raw is None:
        return None
    try:
        use = parse(BudgetUse, cast("Json", raw), at="status.budget")
        days = use.days or ()
        return Tally(
            at=int(parse_timestamp(use.until)),
            gpus=Amount.of({_day_of(each.day): each.gpu_seconds for each in days}),
            priced=Amount.of(
                {
                    _day_of(each.day): amount(each.cost) * HOUR_SECONDS
                    for each in days
                    if each.cost is not None
                }
            ),
            users={
                each.user: Amount.of({_day_of(day.day): day.gpu_seconds for day in each.days})
                for each in use.users or ()
            },
        )
    except (ApiError, ValueError):
        return None


def _day_of(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH


def _date(day: int) -> date:
    return date.fromordinal(_EPOCH + day)


_EPOCH: Final = datetime.fromtimestamp(0, tz=UTC).date().toordinal()
