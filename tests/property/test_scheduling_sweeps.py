"""The limits of sweeps, on random clusters beside every other feature."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import CycleCache, CycleInput, decide
from tests.property.invariants import violations
from tests.property.scheduling_worlds import DRAWN, world


@pytest.mark.parametrize("seed", range(25))
def test_limits_hold_beside_everything_else_and_a_cache_changes_nothing(seed: int) -> None:
    chance = Random(seed)
    given = world(seed, frozenset(chance.sample(sorted(DRAWN), 5)))
    limit = chance.randint(1, 2)
    pending = tuple(
        replace(each, sweep="s", sweep_limit=limit) if chance.random() < 0.6 else each
        for each in given.pending
    )
    cache = CycleCache()
    asked = {"snapshot": given.snapshot, "policy": given.policy, "now": given.now}
    decide(CycleInput(pending=given.pending, **asked), cache=cache)
    decisions = decide(CycleInput(pending=pending, **asked), cache=cache)
    assert decisions == decide(CycleInput(pending=pending, **asked))
    assert violations(pending=pending, decisions=decisions, **asked) == ()
