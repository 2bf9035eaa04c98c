"""An operator that ends at any write of any life of a job leaves what an undisturbed one does (I9).

`make test-all WHAT=crash` ends one at every write; this takes a slice of the points.
DRUMLINE_CRASH_POINTS=2/8 plays every point of the second eighth of the lives. Where operators end
at several points of one life, DRUMLINE_CRASHES_A_LIFE=1 tells which of them is to blame.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.integration.operator.conftest import HIGH_CLASS
from tests.integration.operator.loss.lanes import (
    MARKS,
    Campaign,
    Undisturbed,
    judge,
    lanes,
    observe_all,
)
from tests.integration.operator.loss.scenarios import LIVES, sampled_lives
from tests.kube import Kube
from tests.seeds import seed_of

pytestmark = MARKS

WHICH = os.environ.get("DRUMLINE_CRASH_POINTS", "")
ALL = bool(WHICH)
SLICE = 200
"""Points of the sample; each of its parts plays a share of them."""
PARTS = [0] if ALL else [0, *(pytest.param(n, marks=pytest.mark.extended) for n in range(1, 6))]
TOGETHER = int(os.environ.get("DRUMLINE_CRASHES_A_LIFE", "1" if ALL else "3"))
"""So many operators end in one life, each at a point of its own."""
LANES = 12
MISSED = 0.2
"""Such a part of the points may not come: some writes are only needed when others are slow."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", PARTS)
async def test_a_crash_at_any_write_ends_as_if_it_had_not_happened(
    api: Kube, observed: dict[str, Undisturbed], part: int
) -> None:
    api.ensure(HIGH_CLASS)
    seed = seed_of("LOSS_SEED")
    lives = all_lives() if ALL else sampled_lives(seed)
    async with lanes(api.kubeconfig, count=LANES) as among:
        undisturbed = await observe_all(among, lives, known=observed)
        campaign = Campaign(among=among, undisturbed=undisturbed)
        points = campaign.points if ALL else campaign.sample(SLICE, seed=seed)[part :: len(PARTS)]
        await campaign.run(points, in_one_life=TOGETHER)
    struck = Counter(point.flavor for outcome in campaign.outcomes for point in outcome.points)
    among = f"of {len(campaign.points)} crash points in {len(campaign.outcomes)} lives"
    print(f"{struck.total()} {among}, LOSS_SEED={seed}: {struck}")
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
