"""Every two features of the scheduler together, each pair in clusters in which both matter.

For each pair, small random clusters are made until taking either feature out changes what is
decided; there, and in those that were tried before, a judge by brute force goes through the
decisions. No pair is left out.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.property.scale import many
from tests.property.scheduling_checks import judged
from tests.property.scheduling_worlds import Feature, world

MOST_TRIES = 3000
SUBTLE = [
    *(
        Feature.LOWERED,
        Feature.POD_GROUP,
        Feature.PERCENT,
        Feature.DEPARTMENT,
        Feature.GROUP,
        Feature.OVERRIDE,
        Feature.RECLAIM,
        Feature.DELAY,
        Feature.PREFERRED,
        Feature.BALANCED,
        Feature.MIN_RUNTIME,
    ),
    *Feature,
].index
"""What matters in few clusters is looked at first."""
WORLDS = many(1, 8)
"""In which both matter, for each pair."""


@pytest.mark.parametrize(
    "pair",
    [frozenset(pair) for pair in combinations(Feature, 2)],
    ids=lambda pair: " x ".join(sorted(pair)),
)
def test_both_features_are_at_work_and_every_answer_is_right(pair: frozenset[Feature]) -> None:
    left = WORLDS
    for seed in range(MOST_TRIES):
        item = world(seed, pair)
        decisions = item.decide()
        matter = all(
            item.without(feature).decide() != decisions for feature in sorted(pair, key=SUBTLE)
        )
        if matter or seed < WORLDS:
            assert judged(item, decisions) == [], seed
        left -= matter
        if not left:
            return
    pytest.fail(f"found {WORLDS - left} of {WORLDS} clusters in which both of {pair} matter")
