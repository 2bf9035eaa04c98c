"""An operator that ends at any write of any life of a job leaves what an undisturbed one does (I9).

`make test-all WHAT=crash` ends one at every write; this takes a slice of the points.
DRUMLINE_CRASH_POINTS=2/8 plays every point of the second eighth of the lives.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.integration.operator.conftest import HIGH_CLASS
from tests.integration.operator.loss.lanes import MARKS, Campaign, judge, lanes, observe_all
from tests.integration.operator.loss.scenarios import LIVES
from tests.kube import Kube
from tests.seeds import seed_of_the_day

pytestmark = MARKS

WHICH = os.environ.get("DRUMLINE_CRASH_POINTS", "")
ALL = bool(WHICH)
SLICE = 200
LIVES_OF_A_DAY = 16
LANES = 12
MISSED = 0.1
"""Such a part of the points may not come: some writes are only needed when others are slow."""


@pytest.mark.timeout(7200 if ALL else 600)
async def test_a_crash_at_any_write_ends_as_if_it_had_not_happened(api: Kube) -> None:
    api.ensure(HIGH_CLASS)
    seed = seed_of_the_day("CRASH_SEED")
    lives = all_lives() if ALL else random.Random(seed).sample(sorted(LIVES), LIVES_OF_A_DAY)
    async with lanes(api.kubeconfig, count=LANES) as among:
        campaign = Campaign(among=among, undisturbed=await observe_all(among, lives))
        points = campaign.points if ALL else campaign.sample(SLICE, seed=seed)
        await campaign.run(points)
    struck = Counter(
        outcome.flavor for outcome in campaign.outcomes if outcome.struck and outcome.flavor
    )
    print(f"{struck.total()} of {len(campaign.points)} crash points, CRASH_SEED={seed}: {struck}")
    judge(campaign.outcomes)
    assert struck.total() >= (1 - MISSED) * len(points)


def all_lives() -> list[str]:
    """Those that WHICH asks for."""
    if WHICH == "all":
        return sorted(LIVES)
    if WHICH in LIVES:
        return [WHICH]
    part, of = map(int, WHICH.split("/"))
    return sorted(LIVES)[part - 1 :: of]
