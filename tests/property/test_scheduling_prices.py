"""Capacity types and prices on random clusters beside every other feature.

A rule for prices is a list of pools by another name: a gang of which each pool is tried that suits
its queue and it, in the order of cost, is answered like one that names these pools.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import (
    BlockReason,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    Pool,
    Queue,
    decide,
)
from drumline_scheduler.model import CapacityType, PriceRule, SpotRule
from tests.property.invariants import violations
from tests.property.scheduling_worlds import DRAWN, Feature, World, world

PRICES = (None, 0, 900_000, 1_200_000, 2_500_000)
SPOT = (None, None, *SpotRule)
NOT_ACCEPTED = {BlockReason.CAPACITY_TYPE_NOT_ACCEPTED, BlockReason.PRICE_TOO_HIGH}
STILL = frozenset({Feature.ELASTIC})
"""What lets a running gang grow: that names no pools."""


def priced(seed: int, features: frozenset[Feature]) -> World:
    """Pools of any type and price, rules of queues and some gangs; most gangs name no pools."""
    given, chance = world(seed, features), Random(seed)

    def rule() -> PriceRule:
        return PriceRule(spot=chance.choice(SPOT), max_price=chance.choice((None, *PRICES)))

    pools = tuple(
        replace(
            pool,
            capacity=chance.choice(list(CapacityType)),
            price=chance.choice(PRICES),
            lost_percent=chance.choice((0, 0, 40, 200)),
        )
        for pool in given.snapshot.pools
    )
    queues = tuple(replace(queue, price_rule=rule()) for queue in given.snapshot.queues)
    pending = tuple(
        replace(
            gang,
            price_rule=rule() if chance.random() < 0.4 else PriceRule(),
            **({"pool": None, "pools": ()} if chance.random() < 0.7 else {}),
        )
        for gang in given.pending
    )
    snapshot = replace(given.snapshot, pools=pools, queues=queues)
    return replace(given, snapshot=snapshot, pending=pending)


def expected(gang: Gang, queue: Queue, pools: tuple[Pool, ...]) -> tuple[str, ...]:
    """The pools of a gang by the definitions, in the order of trying."""
    wishes = [rule.spot for rule in (gang.price_rule, queue.price_rule) if rule.spot]
    limits = [rule.max_price for rule in (gang.price_rule, queue.price_rule)]
    suitable: list[tuple[bool, float, str]] = []
    for pool in pools:
        spot = pool.capacity is CapacityType.SPOT
        if SpotRule.ONLY in wishes and not spot:
            continue
        if spot and {SpotRule.NEVER, SpotRule.SURPLUS} & set(wishes):
            continue
        price = float("inf") if pool.price is None else pool.price
        if any(limit is not None and price > limit for limit in limits):
            continue
        first = {SpotRule.PREFER: spot, SpotRule.AVOID: not spot}.get(wishes[0] if wishes else None)
        cost = price * (100 + pool.lost_percent)
        suitable.append((first is False, cost, pool.name))
    ordered = [name for _, _, name in sorted(suitable)]
    named = (gang.pool,) if gang.pool is not None else gang.pools
    usable = [name for name in (named or ordered) if name in ordered and name in queue.nominal]
    return tuple(usable)


def by_name(item: World) -> World:
    """The same with pools by name in the place of every rule."""
    queues = {queue.name: queue for queue in item.snapshot.queues}

    def plain(gang: Gang) -> Gang:
        queue = queues.get(gang.queue)
        if queue is None:
            return replace(gang, price_rule=PriceRule())
        named = expected(gang, queue, item.snapshot.pools) or ("none that exists",)
        return replace(gang, pool=None, pools=named, price_rule=PriceRule())

    snapshot = replace(
        item.snapshot,
        pools=tuple(Pool(name=pool.name, levels=pool.levels) for pool in item.snapshot.pools),
        queues=tuple(replace(queue, price_rule=PriceRule()) for queue in item.snapshot.queues),
    )
    return replace(item, snapshot=snapshot, pending=tuple(map(plain, item.pending)))


def answers(decisions: Decisions) -> dict[str, tuple[object, ...]]:
    """Everybody's answer; not accepted and no pool are one word."""
    closed = {*NOT_ACCEPTED, BlockReason.POOL_NOT_FOUND, BlockReason.NO_QUOTA_IN_POOL}
    return {
        **{placed.uid: (placed.pool, placed.assignment) for placed in decisions.placed},
        **{
            blocked.uid: ("closed",) if blocked.reason in closed else (blocked.reason,)
            for blocked in decisions.blocked
        },
        **{each.uid: (each.pool, each.assignment) for each in decisions.preemptions},
    }


@pytest.mark.parametrize("seed", range(60))
def test_nobody_starts_or_grows_where_it_costs_too_much_and_a_cache_changes_nothing(
    seed: int,
) -> None:
    chance = Random(seed)
    item = priced(seed, frozenset(chance.sample(sorted(DRAWN), 5)))
    cache = CycleCache()
    asked = {"policy": item.policy, "now": item.now}
    before = by_name(item)
    decide(CycleInput(snapshot=before.snapshot, pending=before.pending, **asked), cache=cache)
    decisions = decide(
        CycleInput(snapshot=item.snapshot, pending=item.pending, **asked), cache=cache
    )
    assert decisions == item.decide()
    assert (
        violations(
            snapshot=item.snapshot,
            pending=item.pending,
            decisions=decisions,
            policy=item.policy,
            now=item.now,
        )
        == ()
    )


@pytest.mark.parametrize("seed", range(120))
def test_a_rule_for_prices_is_a_list_of_pools_by_another_name(seed: int) -> None:
    chance = Random(seed)
    item = priced(seed, frozenset(chance.sample(sorted(DRAWN), 5)) - STILL)
    assert answers(item.decide()) == answers(by_name(item).decide())


def test_the_rules_make_a_difference() -> None:
    """The worlds above have gangs that start elsewhere, and some that do not start, for a rule."""
    elsewhere = refused = 0
    for seed in range(60):
        item = priced(seed, frozenset({Feature.POOLS}))
        plain = tuple(Pool(name=pool.name, levels=pool.levels) for pool in item.snapshot.pools)
        queues = tuple(replace(each, price_rule=PriceRule()) for each in item.snapshot.queues)
        pending = tuple(replace(gang, price_rule=PriceRule()) for gang in item.pending)
        snapshot = replace(item.snapshot, pools=plain, queues=queues)
        without = answers(replace(item, snapshot=snapshot, pending=pending).decide())
        decisions = item.decide()
        places = {placed.uid: (placed.pool, placed.assignment) for placed in decisions.placed}
        elsewhere += any(
            len(without[uid]) == 2 and without[uid][0] != pool for uid, (pool, _) in places.items()
        )
        refused += any(blocked.reason in NOT_ACCEPTED for blocked in decisions.blocked)
    assert elsewhere > 5
    assert refused > 5
