"""Whatever is lost, late or told twice between the API server and the operator: the same ends.

Each kind of object x each distortion x three seeds: `make test-all WHAT=loss` plays all of them,
DRUMLINE_DISTORTIONS=2/8 every eighth from the second on. Without it each distortion is played once,
on a kind that follows from the seed: fourteen seeds in a row play it on all of its kinds.
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
from tests.integration.operator.loss.matrix import Fault, all_faults, sampled_faults
from tests.integration.operator.loss.scenarios import LIVES, sampled_lives
from tests.kube import Kube
from tests.seeds import seed_of

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
        return sampled_faults(seed)
    if WHICH == "all":
        return all_faults(seed=seed)
    part, of = map(int, WHICH.split("/"))
    return all_faults(seed=seed)[part - 1 :: of]


@pytest.mark.timeout(7200)
async def test_no_distortion_changes_how_a_life_ends(
    api: Kube, observed: dict[str, Undisturbed]
) -> None:
    api.ensure(HIGH_CLASS)
    seed = seed_of("LOSS_SEED")
    chosen = chosen_faults(seed=seed)
    async with lanes(api.kubeconfig, count=LANES) as among:
        sampled = [] if WHICH else sampled_lives(seed)
        lives = {id(fault): life_for(fault, sampled) for fault in chosen}
        undisturbed = await observe_all(among, dict.fromkeys(lives.values()), known=observed)
        outcomes: list[Outcome] = []

        async def play(lane: Lane, fault: Fault) -> None:
            life = lives[id(fault)]
            outcomes.append(await lane.distort(life, fault, undisturbed[life].picture))

        await share(among, chosen, play)
    hit, known = sum(outcome.struck for outcome in outcomes), len(all_faults(seed=seed))
    print(f"{len(outcomes)} of {known} distortions, {hit} hit, LOSS_SEED={seed}")
    judge(outcomes)


def life_for(fault: Fault, sampled: Sequence[str]) -> str:
    """A life in which its kind changes, one of the sample if there is one."""
    telling = TELLING.get(fault.plural, tuple(LIVES))
    lives = [life for life in telling if life in sampled] or telling
    return random.Random(f"{fault}").choice(lives)
