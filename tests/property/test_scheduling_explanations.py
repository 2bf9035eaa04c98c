"""Why gangs are blocked is only said: without explanations the decisions are the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import Blocked, CycleInput, decide
from tests.property.scale import many
from tests.property.scheduling_worlds import Feature, world

PARTS = 4


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("part", range(PARTS))
def test_without_explanations_the_same_is_decided(part: int) -> None:
    fewer = 0
    for seed in range(part, many(200, 10_000), PARTS):
        random = Random(seed)
        features = frozenset(each for each in Feature if random.random() < 0.3)
        item = world(seed, features)
        given = {"snapshot": item.snapshot, "pending": item.pending, "policy": item.policy}
        explained = decide(CycleInput(**given, now=item.now))
        silent = decide(CycleInput(**given, now=item.now, explain=False))
        assert _bare(silent.blocked) == _bare(explained.blocked), seed
        assert replace(silent, blocked=()) == replace(explained, blocked=()), seed
        named = zip(silent.blocked, explained.blocked, strict=True)
        fewer += sum(len(a.blockers) < len(b.blockers) for a, b in named)
    assert fewer > 3


def _bare(blocked: tuple[Blocked, ...]) -> list[Blocked]:
    return [replace(each, message="", blockers=(), remedy=None) for each in blocked]
