"""What queues with a budget had, by day, also by jobs that are gone.

At each look the tally of a queue grows by what its jobs' accounts (`status.gpuSeconds`) grew since
the last one, and by what foreign pods that name it held; in between, all are taken to hold the
same. The tally is kept in the status of
the queue with the second up to which it counts. A new leader goes on from there: of a job whose
account was last written before that second, the account says what it had by then. So nothing is
ever counted twice, and what goes uncounted is

* what a job had between that second and the last write of its account, where the leader before was
  lost in between: minutes, see `WRITE_SECONDS`;
* what a job had after that second that was deleted while no operator ran;
* what foreign pods held between that second and the first look of the new leader: they have no
  account.

A job that was deleted counts up to the look that misses it: its pods take seconds to end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple, cast

from drumline.api.load import ApiError, parse
from drumline.api.queuebudget import BudgetUse
from drumline.api.trainingqueue import TrainingQueueSpec
from drumline.controller.cache.gpu_seconds_rates import JobUse
from drumline.controller.cache.specs import SpecCache
from drumline.controller.conversion.queues import budget_of
from drumline.lifecycle.incidents.gpu_seconds import GpuSecondsRate
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline.scheduling.model import DAY_SECONDS, HOUR_SECONDS, GpuHourBudget
from drumline.scheduling.quota.budgets import spent_percent, window_gpu_seconds

WRITE_SECONDS: Final = 600.0
"""At least this long between two writes of a queue's status that only say how time passes, unless
another whole percent of the budget is spent."""
KEPT_DAYS: Final = 92
"""As many as the longest window; a shorter one may be made longer."""

Json = Mapping[str, Any]


@dataclass(slots=True)
class _Tally:
    """What the jobs of one queue, and foreign pods that name it, had by `at`."""

    at: int
    """Whole seconds since the epoch."""
    days: dict[int, int] = field(default_factory=dict[int, int])
    """GPU-seconds by day, counted from the epoch."""
    job_gpus: int = 0
    """What they hold since then."""
    foreign_gpus: int = 0
    """What foreign pods that name the queue hold since then."""

    def charge(self, gpu_seconds: int, *, until: int) -> None:
        """Add what was had since `at`, to each day its part by time."""
        if gpu_seconds:
            for day, part in _by_day(gpu_seconds, since=self.at, until=until):
                self.days[day] = self.days.get(day, 0) + part
            for day in sorted(self.days)[:-KEPT_DAYS]:
                del self.days[day]
        self.at = max(self.at, until)

    def spent(self, until: int) -> Mapping[int, int]:
        """By day, if the jobs hold the same until then."""
        since = (self.job_gpus + self.foreign_gpus) * max(0, until - self.at)
        if not since:
            return dict(self.days)
        more = Counter(self.days)
        for day, part in _by_day(since, since=self.at, until=until):
            more[day] += part
        return more


class _Charged(NamedTuple):
    """What is charged for one job."""

    queue: str
    rate: GpuSecondsRate | None
    gpu_seconds: int
    """In its life."""


class QueueBudgets:
    """The tallies of all queues that have a budget. For one event loop.

    Args:
        queues: the specs of the queues.
    """

    def __init__(self, queues: SpecCache[TrainingQueueSpec]) -> None:
        self._queues = queues
        self._tallies: dict[str, _Tally] = {}
        self._charged: dict[str, _Charged] = {}
        """By uid of the job."""

    def restore(self, statuses: Mapping[str, Json]) -> None:
        """Begin with what the queues' statuses say; one that cannot be read counts as none."""
        self._charged = {}
        restored = {name: _tally_of(status.get("budget")) for name, status in statuses.items()}
        self._tallies = {name: tally for name, tally in restored.items() if tally is not None}

    def observe(
        self, uses: Iterable[JobUse], *, foreign_gpus: Mapping[str, int], now: float
    ) -> None:
        """Charge what jobs and foreign pods have had since the last look. O(jobs).

        Args:
            uses: all jobs, or at least those of queues with a budget.
            foreign_gpus: what foreign pods hold from now on, by queue.
            now: seconds since the epoch.
        """
        second = int(now)
        names = self.budgets()
        self._tallies = {name: self._tallies.get(name) or _Tally(at=second) for name in names}
        before, self._charged = self._charged, {}
        had: Counter[str] = Counter()
        gpus: Counter[str] = Counter()
        for job, rate in uses:
            queue = job.spec.queue
            known = before.pop(job.uid, None)
            if known is None and queue not in self._tallies:
                continue
            total = 0 if rate is None else rate.at(now)[1]
            if known is None:
                charged = _charged_by(self._tallies[queue].at, rate, created_at=job.created_at)
                known = _Charged(queue, rate, charged)
            had[known.queue] += max(0, total - known.gpu_seconds)
            if queue in self._tallies:
                gpus[queue] += 0 if rate is None else rate.gpus
                self._charged[job.uid] = _Charged(queue, rate, max(total, known.gpu_seconds))
        for gone in before.values():
            if gone.rate is not None:
                had[gone.queue] += max(0, gone.rate.at(now)[1] - gone.gpu_seconds)
        for name, tally in self._tallies.items():
            foreign = tally.foreign_gpus * max(0, second - tally.at)
            tally.charge(had[name] + foreign, until=second)
            tally.job_gpus, tally.foreign_gpus = gpus[name], foreign_gpus.get(name, 0)

    def budgets(self) -> Mapping[str, GpuHourBudget]:
        """The budgets, by queue."""
        budgets = ((name, budget_of(spec)) for name, spec in self._queues.by_name.items())
        return {name: budget for name, budget in budgets if budget is not None}

    def spent(self, now: float) -> Mapping[str, Mapping[int, int]]:
        """`Snapshot.spent` at this moment. O(queues with a budget x days)."""
        return {
            name: self._tallies[name].spent(int(now)) if name in self._tallies else {}
            for name in self.budgets()
        }

    def spent_gpu_hours(self, now: float) -> Mapping[str, float]:
        """By queue with a budget: what was had on the days that count."""
        spent = self.spent(now)
        return {
            name: window_gpu_seconds(spent[name], budget=budget, now=now) / HOUR_SECONDS
            for name, budget in self.budgets().items()
        }

    def status_fields(
        self, name: str, *, before: Json, changed: bool, now: float
    ) -> dict[str, Any]:
        """The field of a queue's status that holds its tally.

        Args:
            name: the queue.
            before: its status.
            changed: whether the status is to be written anyway.
            now: seconds since the epoch.
        """
        spec, tally = self._queues.get(name), self._tallies.get(name)
        budget = None if spec is None else budget_of(spec)
        if budget is None or tally is None:
            return {}
        written = _tally_of(before.get("budget"))
        if written is not None and not changed and now < written.at + WRITE_SECONDS:
            percents = {
                spent_percent(days, budget=budget, now=now) for days in (tally.days, written.days)
            }
            if len(percents) == 1:
                return {"budget": before["budget"]}
        seconds = window_gpu_seconds(tally.days, budget=budget, now=now)
        return {
            "budget": {
                "spentGpuHours": seconds // HOUR_SECONDS,
                "until": timestamp(tally.at),
                "days": [
                    {"day": _date(day).isoformat(), "gpuSeconds": had}
                    for day, had in sorted(tally.days.items())
                ],
            }
        }


def _charged_by(at: int, rate: GpuSecondsRate | None, *, created_at: float) -> int:
    """What the leader before charged at most for a job, if it counted until `at`."""
    if rate is None or created_at > at:
        return 0
    return rate.total if rate.counted > at else rate.at(at)[1]


def _by_day(gpu_seconds: int, *, since: int, until: int) -> Iterable[tuple[int, int]]:
    """Each day's part of what was had in a time; all of it on the last day if that was no time."""
    if until <= since:
        return ((max(since, until) // DAY_SECONDS, gpu_seconds),)
    parts: list[tuple[int, int]] = []
    left, at = gpu_seconds, since
    while at < until:
        day = at // DAY_SECONDS
        end = min(until, (day + 1) * DAY_SECONDS)
        part = left if end == until else gpu_seconds * (end - at) // (until - since)
        parts.append((day, part))
        left, at = left - part, end
    return parts


def _tally_of(raw: object) -> _Tally | None:
    """The tally in `status.budget`; None where there is none that can be read."""
    if raw is None:
        return None
    try:
        use = parse(BudgetUse, cast("Json", raw), at="status.budget")
        days = {_day_of(each.day): each.gpu_seconds for each in use.days or ()}
        return _Tally(at=int(parse_timestamp(use.until)), days=days)
    except (ApiError, ValueError):
        return None


def _day_of(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH


def _date(day: int) -> date:
    return date.fromordinal(_EPOCH + day)


_EPOCH: Final = datetime.fromtimestamp(0, tz=UTC).date().toordinal()
