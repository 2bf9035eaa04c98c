"""Whatever is lost, late or told twice between the API server and the operator: the same ends.

Each kind of object x each distortion x three seeds: `make test-all WHAT=loss` plays all of them,
DRUMLINE_DISTORTIONS=2/8 every eighth from the second on. Every day each distortion is played once,
on a kind that changes from day to day: within a fortnight on all of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from tests.integration.operator.conftest import HIGH_CLASS
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
from tests.integration.operator.loss.matrix import Fault, all_faults, faults_of_the_day
from tests.integration.operator.loss.scenarios import LIVES, lives_of_the_day
from tests.kube import Kube
from tests.seeds import seed_of_the_day

pytestmark = MARKS

WHICH = os.environ.get("DRUMLINE_DISTORTIONS", "")
LANES = 12
TELLING = {
    "nodes": ("recover: node (trainer)", "drain", "resize: smaller and larger"),
    "priorityclasses": ("preempt: trainer and back", "preempt: withdrawn"),
}
"""Lives in which these kinds change."""


def chosen_faults(*, seed: int) -> list[Fault]:
    """Those that WHICH asks for."""
    if not WHICH:
        return faults_of_the_day(seed)
    if WHICH == "all":
        return all_faults(seed=seed)
    part, of = map(int, WHICH.split("/"))
    return all_faults(seed=seed)[part - 1 :: of]


@pytest.mark.timeout(7200 if WHICH else 600)
async def test_no_distortion_changes_how_a_life_ends(
    api: Kube, observed: dict[str, Undisturbed]
) -> None:
    api.ensure(HIGH_CLASS)
    seed = seed_of_the_day("LOSS_SEED")
    chosen = chosen_faults(seed=seed)
    async with lanes(api.kubeconfig, count=LANES) as among:
        today = [] if WHICH else lives_of_the_day(seed)
        lives = {id(fault): life_for(fault, today) for fault in chosen}
        undisturbed = await observe_all(among, dict.fromkeys(lives.values()), known=observed)
        outcomes: list[Outcome] = []

        async def play(lane: Lane, fault: Fault) -> None:
            life = lives[id(fault)]
            outcomes.append(await lane.distort(life, fault, undisturbed[life].picture))

        await share(among, chosen, play)
    hit, known = sum(outcome.struck for outcome in outcomes), len(all_faults(seed=seed))
    print(f"{len(outcomes)} of {known} distortions, {hit} hit, LOSS_SEED={seed}")
    judge(outcomes)


def life_for(fault: Fault, today: Sequence[str]) -> str:
    """A life in which its kind changes, one of today's if there is one."""
    telling = TELLING.get(fault.plural, tuple(LIVES))
    lives = [life for life in telling if life in today] or telling
    return random.Random(f"{fault}").choice(lives)
