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

All of it is in GPU-seconds, whatever part of a GPU a job asks for: what a job's account counts is
multiplied by its share, exactly. The status has whole ones of each day, so a new leader begins with
half of one a day less or more.

What is had costs what its pool costs at the look before: a price that changes counts from the next
look on. What came and left between two looks costs what the dearest of its queue's pools does. Of
users with a limit each, the status keeps the MAX_USERS that had most of what counts: under the next
leader the others begin anew. So does, under any, who holds nothing and had less than KEPT_USERS
others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from drumline.controller.informers.specs import SpecCache
from drumline.controller.queues.budget_tally import Amount, Tally, budget_document, tally_of
from drumline.controller.queues.conversion import budget_of
from drumline.controller.queues.gpu_seconds_rates import JobUse
from drumline.lifecycle.incidents.gpu_seconds import GpuSecondsRate
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import nodes_by_pool
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler.model import Budget
from drumline_scheduler.quota.usage_budgets import spent_percents

WRITE_SECONDS: Final = 600.0
"""At least this long between two writes of a queue's status that only say how time passes, unless
another whole percent of the budget is spent."""

Json = Mapping[str, Any]


class _Charged(NamedTuple):
    """What is charged for one job."""

    queue: str
    user: str
    price: int | Fraction | None
    """Of its pool when it was last looked at, 0 where that has none; None: it had no places."""
    rate: GpuSecondsRate | None
    gpu_seconds: int
    """In its life."""


class _Look:
    """What jobs had since the last look, and what they hold from this one on."""

    def __init__(self) -> None:
        self.had: dict[str, Fraction] = defaultdict(Fraction)
        self.had_priced: dict[str, Fraction] = defaultdict(Fraction)
        self.had_by_user: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        self.gpus: dict[str, Fraction] = defaultdict(Fraction)
        self.priced: dict[str, Fraction] = defaultdict(Fraction)
        self.gpus_by_user: dict[tuple[str, str], Fraction] = defaultdict(Fraction)

    def charge(self, known: _Charged, gpu_seconds: int, *, share: Fraction) -> None:
        """A job had so much, each of its GPUs being this share of one."""
        if gpu_seconds > 0:
            had = gpu_seconds * share
            self.had[known.queue] += had
            self.had_priced[known.queue] += had * (known.price or 0)
            self.had_by_user[known.queue, known.user] += had

    def hold(self, known: _Charged) -> None:
        """A job goes on to hold what it holds."""
        gpus = Fraction(0) if known.rate is None else known.rate.gpus * known.rate.share
        self.gpus[known.queue] += gpus
        self.priced[known.queue] += gpus * (known.price or 0)
        self.gpus_by_user[known.queue, known.user] += gpus


class QueueBudgets:
    """The tallies of all queues that have a budget. For one event loop.

    Args:
        queues: the specs of the queues.
        price_of: of a GPU of a pool for an hour, in millionths; None: not known.
    """

    def __init__(
        self,
        queues: SpecCache[TrainingQueueSpec],
        *,
        price_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._queues = queues
        self._price_of = price_of
        self._tallies: dict[str, Tally] = {}
        self._charged: dict[str, _Charged] = {}
        """By uid of the job."""

    def restore(self, statuses: Mapping[str, Json]) -> None:
        """Begin with what the queues' statuses say; one that cannot be read counts as none."""
        self._charged = {}
        restored = {name: tally_of(status.get("budget")) for name, status in statuses.items()}
        self._tallies = {name: tally for name, tally in restored.items() if tally is not None}

    def observe(
        self,
        uses: Iterable[JobUse],
        *,
        foreign_gpus: Mapping[tuple[str, str], Fraction],
        now: float,
    ) -> None:
        """Charge what jobs and foreign pods have had since the last look. O(jobs).

        Args:
            uses: all jobs, or at least those of queues with a budget.
            foreign_gpus: what foreign pods hold from now on in GPUs, by queue and pool.
            now: seconds since the epoch.
        """
        second, names = int(now), self.budgets()
        self._tallies = {name: self._tallies.get(name) or Tally(at=second) for name in names}
        before, self._charged = self._charged, {}
        look = _Look()
        for job, rate in uses:
            known = before.pop(job.uid, None)
            if known is None and job.spec.queue not in self._tallies:
                continue
            total = 0 if rate is None else rate.at(now)[1]
            if known is None:
                at = self._tallies[job.spec.queue].at
                charged = _charged_by(at, rate, created_at=job.created_at)
                known = self._as_seen(job, rate, gpu_seconds=charged)
            had = max(total, known.gpu_seconds)
            seen = self._as_seen(job, rate, gpu_seconds=had)
            if known.price is None and had > known.gpu_seconds:
                # It came to its places since the last look; if it has left again, nobody saw them.
                price = self._dearest(known.queue) if seen.price is None else seen.price
                known = known._replace(price=price)
            look.charge(known, had - known.gpu_seconds, share=_share(rate, known.rate))
            if job.spec.queue in self._tallies:
                self._charged[job.uid] = seen
                look.hold(seen)
        for gone in before.values():
            if gone.rate is not None:
                had = gone.rate.at(now)[1] - gone.gpu_seconds
                look.charge(gone, had, share=gone.rate.share)
        self._take(look, foreign_gpus=foreign_gpus, second=second)

    def _as_seen(self, job: Job, rate: GpuSecondsRate | None, *, gpu_seconds: int) -> _Charged:
        """What is charged for a job from now on, at the price of the pool of its places."""
        places = job.status.assignment
        seen = None if places is None else self._price_at(job)
        return _Charged(
            queue=job.spec.queue,
            user=job.spec.user or "",
            price=seen,
            rate=rate,
            gpu_seconds=gpu_seconds,
        )

    def _price_at(self, job: Job) -> int | Fraction:
        """Of one of its GPUs: of a job over two pools the mean, as all members have as many."""
        by_pool = nodes_by_pool(job.status)
        prices = {pool: self._price_of(pool) or 0 for pool in by_pool}
        if len(by_pool) == 1:
            return next(iter(prices.values()))
        members = sum(map(len, by_pool.values()))
        return Fraction(sum(len(own) * prices[pool] for pool, own in by_pool.items()), members)

    def _dearest(self, queue: str) -> int:
        """The highest price of the pools that a queue may use."""
        spec = self._queues.get(queue)
        quotas = () if spec is None else spec.quotas
        return max((self._price_of(quota.gpu_pool) or 0 for quota in quotas), default=0)

    def _take(
        self, look: _Look, *, foreign_gpus: Mapping[tuple[str, str], Fraction], second: int
    ) -> None:
        foreign: dict[str, Fraction] = defaultdict(Fraction)
        foreign_priced: dict[str, Fraction] = defaultdict(Fraction)
        for (queue, pool), gpus in foreign_gpus.items():
            foreign[queue] += gpus
            foreign_priced[queue] += gpus * (self._price_of(pool) or 0)
        for name, tally in self._tallies.items():
            since = tally.at
            tally.gpus.charge(look.had[name], since=since, until=second)
            tally.priced.charge(look.had_priced[name], since=since, until=second)
            tally.gpus.rate, tally.gpus.foreign_rate = look.gpus[name], foreign[name]
            tally.priced.rate = look.priced[name]
            tally.priced.foreign_rate = foreign_priced[name]
            if self._limits_users(name):
                self._take_users(name, look, second=second)
            tally.at = max(since, second)

    def _take_users(self, name: str, look: _Look, *, second: int) -> None:
        """Keep those who had or hold something that counts: jobs may name any number of users."""
        tally, budget = self._tallies[name], self.budgets()[name]
        users = {user for of, user in (*look.had_by_user, *look.gpus_by_user) if of == name}
        for user in {*users, *tally.users}:
            amount = tally.users.setdefault(user, Amount())
            amount.charge(look.had_by_user[name, user], since=tally.at, until=second)
            amount.rate = look.gpus_by_user[name, user]
        tally.drop_users(budget, now=second)

    def _limits_users(self, name: str) -> bool:
        budget = self.budgets().get(name)
        return budget is not None and budget.user_gpu_hours is not None

    def budgets(self) -> Mapping[str, Budget]:
        """The budgets, by queue."""
        budgets = ((name, budget_of(spec)) for name, spec in self._queues.by_name.items())
        return {name: budget for name, budget in budgets if budget is not None}

    def spent(self, now: float) -> Mapping[str, Mapping[int, int]]:
        """`Snapshot.spent` at this moment. O(queues with a budget x days)."""
        return {
            name: tally.gpus.spent(since=tally.at, until=int(now)) if tally is not None else {}
            for name, tally in self._known()
        }

    def spent_prices(self, now: float) -> Mapping[str, Mapping[int, int]]:
        """`Snapshot.spent_prices` at this moment."""
        return {
            name: tally.priced.spent(since=tally.at, until=int(now))
            for name, tally in self._known()
            if tally is not None
        }

    def spent_by_user(self, now: float) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
        """`Snapshot.spent_by_user` at this moment."""
        return {
            name: {
                user: had.spent(since=tally.at, until=int(now)) for user, had in tally.users.items()
            }
            for name, tally in self._known()
            if tally is not None and self._limits_users(name)
        }

    def _known(self) -> Iterable[tuple[str, Tally | None]]:
        return ((name, self._tallies.get(name)) for name in self.budgets())

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
        written = tally_of(before.get("budget"))
        if written is not None and not changed and now < written.at + WRITE_SECONDS:
            percents = {
                spent_percents(each.gpus.days, prices=each.priced.days, budget=budget, now=now)
                for each in (tally, written)
            }
            if len(percents) == 1:
                return {"budget": before["budget"]}
        return {"budget": budget_document(tally, budget=budget, now=now)}


def _share(rate: GpuSecondsRate | None, before: GpuSecondsRate | None) -> Fraction:
    """What of a GPU each of a job's GPUs is: that never changes in its life."""
    known = rate or before
    return Fraction(1) if known is None else known.share


def _charged_by(at: int, rate: GpuSecondsRate | None, *, created_at: float) -> int:
    """What the leader before charged at most for a job, if it counted until `at`."""
    if rate is None or created_at > at:
        return 0
    return rate.total if rate.counted > at else rate.at(at)[1]
