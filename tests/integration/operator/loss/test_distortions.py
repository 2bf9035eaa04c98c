"""Whatever is lost, late or told twice between the API server and the operator: the same ends.

Each kind of object x each distortion x three seeds; `make test-all WHAT=loss` plays all of them,
this plays a slice.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from tests.integration.operator.conftest import HIGH_CLASS
from tests.integration.operator.loss.faults import ON_READS, ON_WRITES, Fault
from tests.integration.operator.loss.lanes import (
    MARKS,
    Lane,
    Outcome,
    Undisturbed,
    judge,
    lanes,
    observe_all,
    share,
)
from tests.integration.operator.loss.scenarios import LIVES, lives_of_the_day
from tests.kube import Kube
from tests.seeds import seed_of_the_day

pytestmark = MARKS

ALL = os.environ.get("DRUMLINE_DISTORTIONS") == "all"
SEEDS = 3
SLICE = 40
LANES = 12
READ = ("trainingjobs", "pods", "nodes", "gpupools", "trainingqueues", "priorityclasses")
WRITTEN = (
    *("trainingjobs", "pods", "secrets", "networkpolicies", "poddisruptionbudgets"),
    *("events", "leases"),
)
TELLING = {
    "nodes": ("recover: node (trainer)", "drain", "resize: smaller and larger"),
    "priorityclasses": ("preempt: trainer and back", "preempt: withdrawn"),
}
"""Lives in which these kinds change."""


def faults(*, seed: int) -> list[Fault]:
    pairs = dict.fromkeys(
        [(plural, each) for plural in READ for each in ON_READS]
        + [(plural, each) for plural in WRITTEN for each in ON_WRITES]
    )
    return [
        Fault(plural=plural, distortion=each, seed=seed + number)
        for plural, each in pairs
        for number in range(SEEDS)
    ]


@pytest.mark.timeout(7200 if ALL else 600)
async def test_no_distortion_changes_how_a_life_ends(
    api: Kube, observed: dict[str, Undisturbed]
) -> None:
    api.ensure(HIGH_CLASS)
    seed = seed_of_the_day("LOSS_SEED")
    chosen = faults(seed=seed)
    if not ALL:
        chosen = random.Random(seed).sample(chosen, SLICE)
    async with lanes(api.kubeconfig, count=LANES) as among:
        today = [] if ALL else lives_of_the_day(seed)
        lives = {id(fault): life_for(fault, today) for fault in chosen}
        undisturbed = await observe_all(among, dict.fromkeys(lives.values()), known=observed)
        outcomes: list[Outcome] = []

        async def play(lane: Lane, fault: Fault) -> None:
            life = lives[id(fault)]
            outcomes.append(await lane.distort(life, fault, undisturbed[life].picture))

        await share(among, chosen, play)
    hit = sum(outcome.struck for outcome in outcomes)
    print(f"{len(outcomes)} of {len(faults(seed=seed))} distortions, {hit} hit, LOSS_SEED={seed}")
    judge(outcomes)


def life_for(fault: Fault, today: Sequence[str]) -> str:
    """A life in which its kind changes, one of today's if there is one."""
    telling = TELLING.get(fault.plural, tuple(LIVES))
    lives = [life for life in telling if life in today] or telling
    return random.Random(f"{fault}").choice(lives)
