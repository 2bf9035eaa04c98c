"""What hits the whole operator at once: outages, restored clusters, clocks that are wrong."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial

import pytest

from drumline.app.leader import LeaderClocks
from drumline.kube import informer
from drumline.kube.informer import InformerTiming
from tests.integration.operator.conftest import HIGH_CLASS
from tests.integration.operator.loss.faults import FUTURE
from tests.integration.operator.loss.incarnations import Surroundings
from tests.integration.operator.loss.lanes import (
    MARKS,
    Lane,
    Outcome,
    Undisturbed,
    judge,
    lanes,
    observe_all,
)
from tests.integration.operator.loss.scenarios import LIVES
from tests.kube import Kube
from tests.seeds import seed_of

pytestmark = MARKS

CASES = 6
"""So many lives side by side, each with a seed of its own."""
HOUR = 3600.0
OFF = 600.0
OUTAGE_SECONDS = 1.5
BY_THE_CLOCK = ("preempt: withdrawn", "start: too late")
"""Lives whose end depends on deadlines."""
PATIENT = {"startDeadlineSeconds": 7200}
"""A leader whose clock is ahead of its predecessor's gives starting gangs up that much sooner."""


class OutageCase:
    """One lane in trouble; `prepare` says what the operators live in, `cause` what happens."""

    name = ""

    def __init__(self, lane: Lane, *, seed: int) -> None:
        self.lane = lane
        self.seed = seed

    def prepare(self) -> Surroundings:
        raise NotImplementedError

    def cause(self) -> None:
        raise NotImplementedError


class HourOfOutage(OutageCase):
    """Nothing gets through for an hour of the operator's clocks."""

    name = "an hour of outage"

    def prepare(self) -> Surroundings:
        self.jump = 0.0
        clocks = LeaderClocks(
            wall=lambda: time.time() + self.jump, monotonic=lambda: time.monotonic() + self.jump
        )
        return Surroundings(server=self.lane.proxy.url, clocks=lambda _: clocks)

    def cause(self) -> None:
        self.jump = HOUR
        self.lane.corner.tasks.create_task(self.lane.proxy.break_down(OUTAGE_SECONDS))


class WrongClock(OutageCase):
    """Every second operator's clock is ten minutes ahead or behind."""

    name = "clocks ten minutes off"

    def prepare(self) -> Surroundings:
        off = random.Random(self.seed).choice((OFF, -OFF))
        ahead = LeaderClocks(wall=lambda: time.time() + off)
        return Surroundings(clocks=lambda number: ahead if number % 2 else LeaderClocks())

    def cause(self) -> None:
        self.lane.operators.replace()


class RestoredCluster(OutageCase):
    """All versions go back, and all watches are cut."""

    name = "a restore from a backup"

    def prepare(self) -> Surroundings:
        self.lane.proxy.ahead = FUTURE
        return Surroundings(server=self.lane.proxy.url)

    def cause(self) -> None:
        self.lane.proxy.restore()


@pytest.mark.parametrize("kind", [HourOfOutage, WrongClock, RestoredCluster])
async def test_it_ends_as_if_it_had_not_happened(
    api: Kube, monkeypatch: pytest.MonkeyPatch, kind: type[OutageCase]
) -> None:
    api.ensure(HIGH_CLASS)
    # a version from the future is answered with silence, which ends after two minutes otherwise
    monkeypatch.setattr(informer, "InformerTiming", partial(InformerTiming, silence_seconds=1.5))
    seed = seed_of("LOSS_SEED")
    among = [life for life in LIVES if not life.startswith(BY_THE_CLOCK)]
    chosen = random.Random(seed).sample(among, CASES)
    async with lanes(api.kubeconfig, count=CASES) as workers:
        for lane in workers:
            lane.corner.defaults = PATIENT
        seen = await observe_all(workers, chosen, known={})

        async def suffer(lane: Lane, life: str, number: int) -> Outcome:
            return await play(kind(lane, seed=seed + number), life, seen[life])

        outcomes = await asyncio.gather(*map(suffer, workers, chosen, range(CASES)))
    judge(outcomes)
    assert any(outcome.struck for outcome in outcomes)


async def play(case: OutageCase, life: str, seen: Undisturbed) -> Outcome:
    return await case.lane.trouble(
        life,
        seen,
        case=case.name,
        seed=case.seed,
        surroundings=case.prepare(),
        cause=case.cause,
    )
