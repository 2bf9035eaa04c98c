"""Gangs that name several pools in cohorts that share all of them, judged by brute force.

In the other worlds the second pool is small and nobody runs there. Here quota of both pools is
lent and borrowed, so a gang that has quota in its first pool may have to borrow in its second.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import CycleCache, CycleInput, Gang, Queue, decide
from drumline_scheduler.admission import Admission
from tests.property.scale import many
from tests.property.scheduling_checks import judged
from tests.property.scheduling_worlds import DRAWN, Feature, World, some_gang, world

pytestmark = pytest.mark.extended(keep=2)

WORLDS, AT_ONCE = many(600, 30_000), 100
BESIDE = [
    each
    for each in DRAWN
    if each not in {Feature.POOLS, Feature.BORROWING, Feature.RESERVATION, Feature.PREEMPTION}
]
POOLS = [("a", "b"), ("b", "a"), ("a",), ("b",), ()]


def contested(seed: int) -> World:
    """Both pools are alike; their quotas are divided between queues of one cohort."""
    chance = Random(f"several pools {seed}")
    beside = chance.sample(BESIDE, chance.randint(0, 2))
    given = world(seed, frozenset({Feature.BORROWING, *beside}))
    nodes = tuple(
        replace(node, pool=chance.choice("ab"), ready=True) for node in given.snapshot.nodes
    )
    pool_of = {node.name: node.pool for node in nodes}
    admitted = tuple(
        replace(held, pool=pool_of[held.assignment[0]], gang=replace(held.gang, pool=None))
        for held in given.snapshot.admitted
        if len({pool_of[name] for name in held.assignment}) == 1
    )

    def shared(queue: Queue) -> Queue:
        return replace(queue, nominal={pool: chance.randint(0, 5) for pool in "ab"})

    def named(gang: Gang) -> Gang:
        return replace(gang, pool=None, pools=chance.choice(POOLS), excluded_nodes=frozenset())

    more = [
        some_gang(chance, f"v{i}", features=frozenset(beside), at=chance.choice([0.5, 1.5, 2.5]))
        for i in range(chance.randint(1, 3))
    ]
    return replace(
        given,
        snapshot=replace(
            given.snapshot,
            nodes=nodes,
            queues=tuple(map(shared, given.snapshot.queues)),
            admitted=admitted,
        ),
        pending=tuple(named(gang) for gang in (*given.pending, *more)),
    )


@pytest.mark.parametrize("first", range(0, WORLDS, AT_ONCE))
def test_nobody_borrows_in_its_second_pool_what_another_queue_is_entitled_to(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        item = contested(seed)
        assert judged(item, item.decide()) == [], seed


def test_the_order_of_the_input_and_a_cache_decide_nothing() -> None:
    for seed in range(100):
        item, cache = contested(seed), CycleCache()
        asked = {"policy": item.policy, "now": item.now}
        decide(CycleInput(snapshot=item.snapshot, pending=item.pending[:1], **asked), cache=cache)
        decisions = item.decide()
        assert item.shuffled(Random(seed)).decide() == decisions, seed
        assert (
            decide(CycleInput(snapshot=item.snapshot, pending=item.pending, **asked), cache=cache)
            == decisions
        ), seed


def test_a_gang_that_yields_again_is_decided_as_by_a_new_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in (319, *range(60)):
        item = contested(seed)
        decisions = item.decide()
        with monkeypatch.context() as patch:
            patch.setattr(Admission, "_yields_again", lambda _self, _gang: None)
            assert item.decide() == decisions, seed
