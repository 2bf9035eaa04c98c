"""What budgets charge adds up to the jobs' accounts, in GPU-hours, in money and by user.

Jobs on whole GPUs and on parts of them start, grow, shrink, are preempted and end between looks;
prices change; leaders follow each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from drumline.kube.views import TrainingJobView
from drumline.lifecycle.model.timestamps import timestamp
from tests.unit.controller.budget_leader import NOON, Leader, a_queue
from tests.unit.controller.views import assignment, job_view

pytestmark = pytest.mark.extended(keep=20)

POOLS = {"h100": None, "mixed": 7}
BUDGET = {"gpuHours": 10**6, "windowDays": 92, "cost": "100000000", "userGpuHours": 10**6}


@dataclass(slots=True, kw_only=True)
class PlayedJob:
    """A job of two pods in one pool, and what its account has."""

    name: str
    user: str
    pool: str
    parts: int | None
    had: int = 0
    """In its own GPUs, by `since`."""
    gpus: int = 0
    since: int = int(NOON)

    @property
    def share(self) -> Fraction:
        per_gpu = POOLS[self.pool]
        return (
            Fraction(1) if self.parts is None or per_gpu is None else Fraction(self.parts, per_gpu)
        )

    def account(self, now: float) -> int:
        return self.had + 2 * self.gpus * max(0, int(now) - self.since)

    def change(self, gpus: int, *, at: int) -> None:
        self.had, self.since, self.gpus = self.account(at), max(at, self.since), gpus

    def view(self, version: int) -> TrainingJobView:
        places = assignment("node-0", "node-1", pool=self.pool) if self.gpus else {}
        unit: dict[str, Any] = (
            {} if self.parts is None else {"parts": self.parts, "partsPerGpu": POOLS[self.pool]}
        )
        seconds = {"until": timestamp(self.since), "starting": self.had, **unit}
        return job_view(
            self.name,
            uid=self.name,
            user=self.user,
            gpusPerNode=max(1, self.gpus),
            version=version,
            status={**places, "gpuSeconds": seconds},
        )


def some_jobs(chance: Random) -> list[PlayedJob]:
    jobs: list[PlayedJob] = []
    for name in "abcde":
        pool = chance.choice(list(POOLS))
        parts = None if POOLS[pool] is None else chance.choice([None, 1, 2, 3])
        jobs.append(PlayedJob(name=name, user=chance.choice(["u", "v"]), pool=pool, parts=parts))
    return jobs


@pytest.mark.parametrize("seed", range(60))
def test_the_charges_add_up_to_the_accounts_of_the_jobs(seed: int) -> None:
    chance = Random(seed)
    quotas = [{"gpuPool": pool, "nominalGpus": 64} for pool in POOLS]
    leader = Leader(a_queue(budget=BUDGET, quotas=quotas))
    leader.prices |= {"h100": 2_500_000, "mixed": 3_333_333}
    jobs, now, money = some_jobs(chance), float(NOON), Fraction(0)
    leader.look(now, *(job.view(1) for job in jobs))
    for turn in range(chance.randint(10, 50)):
        before = {
            job.name: (job.account(now), bool(job.gpus), leader.prices[job.pool]) for job in jobs
        }
        if turn % 5 == 4:
            leader.prices[chance.choice(list(POOLS))] = chance.randint(0, 9_999_999)
        for job in jobs:
            if chance.random() < 0.4:
                gpus = chance.choice([0, 1]) if job.parts else chance.choice([0, 1, 2, 8])
                job.change(gpus, at=int(now + chance.uniform(0, 5)))
        now += chance.uniform(5, 4000)
        leader.look(now, *(job.view(turn + 2) for job in jobs))
        for job in jobs:
            had, had_places, price = before[job.name]
            # What came since the last look costs what its pool costs now.
            price = price if had_places else leader.prices[job.pool]
            money += (job.account(now) - had) * job.share * price
        if chance.random() < 0.2:
            leader = successor(leader, now)
            leader.look(now, *(job.view(turn + 2) for job in jobs))
    by_user: Counter[str] = Counter()
    for job in jobs:
        by_user[job.user] += job.account(now) * job.share
    whole = sum(by_user.values())
    gpu_seconds = sum(leader.budgets.spent(now)["research"].values())
    assert gpu_seconds == pytest.approx(float(whole), rel=0.001, abs=1)
    priced = sum(leader.budgets.spent_prices(now)["research"].values())
    assert priced / 3.6e9 == pytest.approx(float(money) / 3.6e9, rel=0.001, abs=0.01)
    for user, account in by_user.items():
        days = leader.budgets.spent_by_user(now)["research"].get(user, {})
        assert sum(days.values()) == pytest.approx(float(account), rel=0.001, abs=1), user


def successor(leader: Leader, now: float) -> Leader:
    """The next leader at once, at the same prices."""
    after = leader.after_it(now)
    after.prices.update(leader.prices)
    return after
