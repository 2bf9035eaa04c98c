"""GPU-hours and money used by queues with a budget, by day. Includes deleted jobs.

At each observation, the tally of a queue grows by the growth of its jobs' accounts
(`status.gpuSeconds`) and by the use of foreign pods. Between two observations, all are assumed to
hold the same number of GPUs. The tally is stored in the queue's status with the second up to which
it counts.

A new leader continues from there. An account that was last written before that second tells the use
up to it. So no use is counted twice. These uses are not counted:

- use between that second and the last write of a job's account, if the previous leader was lost in
  between. This is a matter of minutes, see `WRITE_SECONDS`.
- use after that second by a job that was deleted while no operator ran.
- use by foreign pods between that second and the new leader's first observation. Foreign pods have
  no account.

A deleted job counts until the observation that misses it, because its pods take seconds to end.

All amounts are in GPU-seconds of whole GPUs. The account of a job that uses parts of GPUs is
multiplied exactly by its share. The status has whole numbers for each day, so a new leader starts
with an error of at most half a GPU-second per day.

Use costs the pool's price at the observation before, so a changed price counts from the next
observation. Use that began and ended between two observations costs the highest price of the
queue's pools. The status keeps the MAX_USERS users with the highest use in the window. Other users
start at zero under the next leader. Users that hold no GPUs also start again when KEPT_USERS others
have used more.
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
"""Least time between two writes of a queue's status that record only the passing time.

A status is also written when another whole percent of the budget is spent.
"""

Json = Mapping[str, Any]


class _ObservedJob(NamedTuple):
    """The state of one job at the last observation."""

    queue: str
    user: str
    price: int | Fraction | None
    """Price of its pool at the last observation, 0 if the pool has none. None without places."""
    rate: GpuSecondsRate | None
    gpu_seconds: int
    """GPU-seconds over the life of the job."""


class _Observation:
    """Use by jobs since the last observation, and the GPUs that they hold now."""

    def __init__(self) -> None:
        self.used: dict[str, Fraction] = defaultdict(Fraction)
        self.used_priced: dict[str, Fraction] = defaultdict(Fraction)
        self.used_by_user: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        self.gpus: dict[str, Fraction] = defaultdict(Fraction)
        self.priced: dict[str, Fraction] = defaultdict(Fraction)
        self.gpus_by_user: dict[tuple[str, str], Fraction] = defaultdict(Fraction)

    def charge(self, known: _ObservedJob, gpu_seconds: int, *, share: Fraction) -> None:
        """Add the use of one job in GPU-seconds, each GPU being `share` of a whole one."""
        if gpu_seconds > 0:
            used = gpu_seconds * share
            self.used[known.queue] += used
            self.used_priced[known.queue] += used * (known.price or 0)
            self.used_by_user[known.queue, known.user] += used

    def hold(self, known: _ObservedJob) -> None:
        """Add the GPUs that a job holds from now on."""
        gpus = Fraction(0) if known.rate is None else known.rate.gpus * known.rate.share
        self.gpus[known.queue] += gpus
        self.priced[known.queue] += gpus * (known.price or 0)
        self.gpus_by_user[known.queue, known.user] += gpus


class QueueBudgets:
    """The tallies of all queues that have a budget. For one event loop.

    Args:
        queues: the specs of the queues.
        price_of: returns the price of a pool's GPU-hour in millionths, or None if it is not known.
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
        self._charged: dict[str, _ObservedJob] = {}
        """Keyed by uid of the job."""

    def restore(self, statuses: Mapping[str, Json]) -> None:
        """Start with the tallies in the queues' statuses. An unreadable one counts as none."""
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
        """Charge the use of jobs and foreign pods since the last observation. O(jobs).

        Args:
            uses: all jobs, or at least the jobs of queues with a budget.
            foreign_gpus: GPUs that foreign pods hold now, by queue and pool.
            now: seconds since the epoch.
        """
        # Phase 1: a queue that has a budget now starts its tally, others lose theirs.
        second, names = int(now), self.budgets()
        self._tallies = {name: self._tallies.get(name) or Tally(at=second) for name in names}
        before, self._charged = self._charged, {}
        observation = _Observation()
        # Phase 2: charge each job the growth of its account since the last observation.
        for job, rate in uses:
            known = before.pop(job.uid, None)
            if known is None and job.spec.queue not in self._tallies:
                continue
            total = 0 if rate is None else rate.at(now)[1]
            # First observation of this job: start from the account that the leader before has
            # charged.
            if known is None:
                at = self._tallies[job.spec.queue].at
                charged = _charged_by(at, rate, created_at=job.created_at)
                known = self._observed(job, rate, gpu_seconds=charged)
            # An account never shrinks. A status that was restored from a backup may, and is
            # ignored.
            used = max(total, known.gpu_seconds)
            seen = self._observed(job, rate, gpu_seconds=used)
            if known.price is None and used > known.gpu_seconds:
                # It came to its places since the last look; if it has left again, nobody saw them.
                price = self._highest_price(known.queue) if seen.price is None else seen.price
                known = known._replace(price=price)
            observation.charge(known, used - known.gpu_seconds, share=_share(rate, known.rate))
            if job.spec.queue in self._tallies:
                self._charged[job.uid] = seen
                observation.hold(seen)
        # Phase 3: jobs that were deleted since then count until now. Their pods take seconds to
        # end.
        for gone in before.values():
            if gone.rate is not None:
                used = gone.rate.at(now)[1] - gone.gpu_seconds
                observation.charge(gone, used, share=gone.rate.share)
        # Phase 4: add everything to the tallies.
        self._add_to_tallies(observation, foreign_gpus=foreign_gpus, second=second)

    def _observed(self, job: Job, rate: GpuSecondsRate | None, *, gpu_seconds: int) -> _ObservedJob:
        """Return the state of a job now, at the price of the pool of its places."""
        places = job.status.assignment
        seen = None if places is None else self._price_at(job)
        return _ObservedJob(
            queue=job.spec.queue,
            user=job.spec.user or "",
            price=seen,
            rate=rate,
            gpu_seconds=gpu_seconds,
        )

    def _price_at(self, job: Job) -> int | Fraction:
        """Return the price of one GPU of the job.

        For a job in two pools it is the mean over the members, because all have the same number of
        GPUs.
        """
        by_pool = nodes_by_pool(job.status)
        prices = {pool: self._price_of(pool) or 0 for pool in by_pool}
        if len(by_pool) == 1:
            return next(iter(prices.values()))
        members = sum(map(len, by_pool.values()))
        return Fraction(sum(len(own) * prices[pool] for pool, own in by_pool.items()), members)

    def _highest_price(self, queue: str) -> int:
        """Return the highest price of the pools that a queue may use."""
        spec = self._queues.get(queue)
        quotas = () if spec is None else spec.quotas
        return max((self._price_of(quota.gpu_pool) or 0 for quota in quotas), default=0)

    def _add_to_tallies(
        self,
        observation: _Observation,
        *,
        foreign_gpus: Mapping[tuple[str, str], Fraction],
        second: int,
    ) -> None:
        # Foreign pods have no account: they are charged by their rate from the next observation on.
        foreign: dict[str, Fraction] = defaultdict(Fraction)
        foreign_priced: dict[str, Fraction] = defaultdict(Fraction)
        for (queue, pool), gpus in foreign_gpus.items():
            foreign[queue] += gpus
            foreign_priced[queue] += gpus * (self._price_of(pool) or 0)
        for name, tally in self._tallies.items():
            since = tally.at
            tally.gpus.charge(observation.used[name], since=since, until=second)
            tally.priced.charge(observation.used_priced[name], since=since, until=second)
            tally.gpus.rate, tally.gpus.foreign_rate = observation.gpus[name], foreign[name]
            tally.priced.rate = observation.priced[name]
            tally.priced.foreign_rate = foreign_priced[name]
            if self._limits_users(name):
                self._add_to_users(name, observation, second=second)
            tally.at = max(since, second)

    def _add_to_users(self, name: str, observation: _Observation, *, second: int) -> None:
        """Charge each user, and forget users without use. Jobs may name any number of users."""
        tally, budget = self._tallies[name], self.budgets()[name]
        users = {
            user
            for of, user in (*observation.used_by_user, *observation.gpus_by_user)
            if of == name
        }
        for user in {*users, *tally.users}:
            amount = tally.users.setdefault(user, Amount())
            amount.charge(observation.used_by_user[name, user], since=tally.at, until=second)
            amount.rate = observation.gpus_by_user[name, user]
        tally.drop_users(budget, now=second)

    def _limits_users(self, name: str) -> bool:
        budget = self.budgets().get(name)
        return budget is not None and budget.user_gpu_hours is not None

    def budgets(self) -> Mapping[str, Budget]:
        """Return the budgets by queue."""
        budgets = ((name, budget_of(spec)) for name, spec in self._queues.by_name.items())
        return {name: budget for name, budget in budgets if budget is not None}

    def spent(self, now: float) -> Mapping[str, Mapping[int, int]]:
        """Return `Snapshot.spent` at this time. O(queues with a budget x days)."""
        return {
            name: tally.gpus.spent(since=tally.at, until=int(now)) if tally is not None else {}
            for name, tally in self._known()
        }

    def spent_prices(self, now: float) -> Mapping[str, Mapping[int, int]]:
        """Return `Snapshot.spent_prices` at this time."""
        return {
            name: tally.priced.spent(since=tally.at, until=int(now))
            for name, tally in self._known()
            if tally is not None
        }

    def spent_by_user(self, now: float) -> Mapping[str, Mapping[str, Mapping[int, int]]]:
        """Return `Snapshot.spent_by_user` at this time."""
        return {
            name: {
                user: used.spent(since=tally.at, until=int(now))
                for user, used in tally.users.items()
            }
            for name, tally in self._known()
            if tally is not None and self._limits_users(name)
        }

    def _known(self) -> Iterable[tuple[str, Tally | None]]:
        return ((name, self._tallies.get(name)) for name in self.budgets())

    def status_fields(
        self, name: str, *, before: Json, changed: bool, now: float
    ) -> dict[str, Any]:
        """Return the field of a queue's status that holds its tally.

        Args:
            name: name of the queue.
            before: its current status.
            changed: whether the status is written for another reason.
            now: seconds since the epoch.
        """
        spec, tally = self._queues.get(name), self._tallies.get(name)
        budget = None if spec is None else budget_of(spec)
        if budget is None or tally is None:
            return {}
        written = tally_of(before.get("budget"))
        # Keep the written tally while only time passes, unless another whole percent is spent. Each
        # write costs the API server a write to etcd.
        if written is not None and not changed and now < written.at + WRITE_SECONDS:
            percents = {
                spent_percents(each.gpus.days, prices=each.priced.days, budget=budget, now=now)
                for each in (tally, written)
            }
            if len(percents) == 1:
                return {"budget": before["budget"]}
        return {"budget": budget_document(tally, budget=budget, now=now)}


def _share(rate: GpuSecondsRate | None, before: GpuSecondsRate | None) -> Fraction:
    """Return which fraction of a whole GPU one GPU of a job counts as. It never changes."""
    known = rate or before
    return Fraction(1) if known is None else known.share


def _charged_by(at: int, rate: GpuSecondsRate | None, *, created_at: float) -> int:
    """Return the GPU-seconds that the previous leader charged at most, if it counted to `at`."""
    if rate is None or created_at > at:
        return 0
    return rate.total if rate.counted > at else rate.at(at)[1]
