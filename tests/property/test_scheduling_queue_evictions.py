"""Drained queues on random clusters beside every other feature."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import CycleCache, CycleInput, QueueEvictionReason, decide
from drumline_scheduler.queue_evictions import with_evictions
from tests.property.invariants import violations
from tests.property.scheduling_worlds import DRAWN, World, world


def drained(seed: int) -> World:
    """Some queues are drained, and some gangs were told to leave before."""
    chance = Random(seed)
    given = world(seed, frozenset(chance.sample(sorted(DRAWN), 5)))
    queues = tuple(
        replace(queue, held=True, drained=True) if chance.random() < 0.5 else queue
        for queue in given.snapshot.queues
    )
    running = tuple(
        replace(held, leaving=True, departs=True)
        if not (held.leaving or held.nominated or held.giving_up) and chance.random() < 0.3
        else held
        for held in given.snapshot.admitted
    )
    return replace(given, snapshot=replace(given.snapshot, queues=queues, admitted=running))


@pytest.mark.parametrize("seed", range(60))
def test_a_drained_queue_empties_starts_nothing_and_a_cache_changes_nothing(seed: int) -> None:
    item = drained(seed)
    asked = {"pending": item.pending, "policy": item.policy, "now": item.now}
    decisions, cache = item.decide(), CycleCache()
    for _ in range(2):
        assert decide(CycleInput(snapshot=item.snapshot, **asked), cache=cache) == decisions
    assert violations(snapshot=item.snapshot, decisions=decisions, **asked) == ()
    closed = {queue.name for queue in item.snapshot.queues if queue.drained}
    of_closed = {gang.uid for gang in item.pending if gang.queue in closed}
    assert not of_closed & {placed.uid for placed in decisions.placed}
    assert {blocked.uid for blocked in decisions.blocked} >= of_closed


def lowered(seed: int) -> World:
    """Return the same world with lowered quotas. Most queues evict the excess."""
    chance, given = Random(seed), drained(seed)
    queues = tuple(
        replace(
            queue,
            held=False,
            drained=False,
            evicts_excess=chance.random() < 0.8,
            nominal={pool: chance.randint(0, gpus) for pool, gpus in queue.nominal.items()},
        )
        for queue in given.snapshot.queues
    )
    return replace(given, snapshot=replace(given.snapshot, queues=queues))


def evicted_for_quota(seeds: Iterable[int]) -> int:
    """Judge each cycle. Return the number of gangs that leave because of a lowered quota."""
    count = 0
    for seed in seeds:
        item = lowered(seed)
        asked = {"pending": item.pending, "policy": item.policy, "now": item.now}
        decisions = item.decide()
        assert violations(snapshot=item.snapshot, decisions=decisions, **asked) == (), seed
        why = [eviction.why for eviction in decisions.evictions]
        count += why.count(QueueEvictionReason.QUOTA_LOWERED)
        # Each evicted gang gets this one message, and no other gang gets one.
        going = with_evictions(item.snapshot, leaving=decisions.evictions, staying=decisions.stay)
        again = decide(CycleInput(snapshot=going, **asked))
        left = {each.why for each in again.evictions}
        assert QueueEvictionReason.QUOTA_LOWERED not in left, seed
    return count


def test_only_gangs_above_a_lowered_quota_leave() -> None:
    assert evicted_for_quota([*range(120), 823]) > 10
