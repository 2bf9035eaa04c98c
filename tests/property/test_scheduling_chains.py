"""Gangs that wait for other jobs change nothing for all others, on random clusters."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import CycleCache, CycleInput, Predecessor, decide
from tests.property.invariants import violations
from tests.property.scheduling_worlds import DRAWN, world

SEEDS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_gang_that_waits_for_a_job_is_as_if_it_were_not_there(seed: int) -> None:
    chance = Random(seed)
    features = frozenset(chance.sample(sorted(DRAWN), 5))
    given = world(seed, features)
    waits = {each.uid for each in given.pending if not each.nominated and chance.random() < 0.4}
    link = (Predecessor(key="team/elsewhere"),)
    pending = tuple(
        replace(each, after=link) if each.uid in waits else each for each in given.pending
    )
    cache = CycleCache()
    asked = {"snapshot": given.snapshot, "policy": given.policy, "now": given.now}
    decide(CycleInput(pending=given.pending, **asked), cache=cache)
    decisions = decide(CycleInput(pending=pending, **asked), cache=cache)
    assert decisions == decide(CycleInput(pending=pending, **asked))
    broken = violations(
        snapshot=given.snapshot,
        pending=pending,
        decisions=decisions,
        policy=given.policy,
        now=given.now,
    )
    assert broken == ()
    alone = decide(
        CycleInput(pending=tuple(each for each in given.pending if each.uid not in waits), **asked)
    )
    assert alone == replace(
        decisions,
        blocked=tuple(each for each in decisions.blocked if each.uid not in waits),
        order=tuple(uid for uid in decisions.order if uid not in waits),
    )
