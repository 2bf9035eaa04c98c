"""Budgets on random clusters beside every other feature.

A queue whose budget is spent is treated as a held one, but that its gangs neither grow nor move.
So where none can do either, both worlds are answered alike: only the reason differs.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from random import Random

import pytest

from drumline_scheduler import (
    BlockReason,
    Budget,
    CycleCache,
    CycleInput,
    Decisions,
    Refill,
    WhenSpent,
    decide,
)
from drumline_scheduler.quota.usage_budgets import window_gpu_seconds
from tests.property.invariants import violations
from tests.property.scheduling_worlds import DRAWN, NOW, Feature, World, world

STILL = frozenset({Feature.ELASTIC, Feature.PREEMPTION, Feature.MIN_RUNTIME})
"""What can let a running gang grow, or be moved for another."""


def some_budget(chance: Random) -> Budget:
    """Of the last days."""
    return Budget(gpu_hours=chance.randint(1, 9), window_days=chance.randint(1, 3))


def budget_of_any_kind(chance: Random) -> Budget:
    refill, user_gpu_hours = chance.choice([None, *Refill]), chance.choice([None, 3])
    gpu_hours = None if user_gpu_hours and chance.randint(0, 1) else chance.randint(1, 9)
    return Budget(
        gpu_hours=gpu_hours,
        window_days=0 if refill else chance.randint(1, 3),
        refill=refill,
        credit_gpu_hours=chance.choice([0, 4]) if refill and gpu_hours else 0,
        when_spent=chance.choice(list(WhenSpent)),
        cost=chance.choice([None, 20]),
        user_gpu_hours=user_gpu_hours,
    )


def some_days(chance: Random) -> dict[int, int]:
    """What was had on some of the last days."""
    today = int(NOW // 86_400)
    return {today - chance.randint(0, 40): chance.randint(0, 9 * 3600) for _ in range(4)}


def budgeted(seed: int, features: frozenset[Feature]) -> World:
    """Each queue has a budget or none, and has had anything from nothing to twice as much."""
    given, chance = world(seed, features), Random(seed)
    queues = tuple(
        replace(queue, budget=some_budget(chance)) if chance.randint(0, 3) else queue
        for queue in given.snapshot.queues
    )
    spent = {
        queue.name: {
            int(NOW // 86_400) - ago: chance.randint(0, 2 * 3600 * (queue.budget.gpu_hours or 0))
            for ago in range(chance.randint(0, 4))
        }
        for queue in queues
        if queue.budget is not None
    }
    return replace(given, snapshot=replace(given.snapshot, queues=queues, spent=spent))


def spent_queues(item: World) -> set[str]:
    """By the rule, day by day."""
    today = int(item.now // 86_400)
    return {
        queue.name
        for queue in item.snapshot.queues
        if queue.budget is not None
        if sum(
            item.snapshot.spent[queue.name].get(today - ago, 0)
            for ago in range(queue.budget.window_days)
        )
        >= 3600 * (queue.budget.gpu_hours or 0)
    }


def answers(decisions: Decisions) -> dict[str, tuple[str, ...]]:
    """Everybody's answer; held and spent are one word."""
    closed = {BlockReason.QUEUE_HELD, BlockReason.BUDGET_SPENT}
    return {
        **{placed.uid: placed.assignment for placed in decisions.placed},
        **{
            blocked.uid: ("closed",)
            if blocked.reason in closed
            else (blocked.reason, blocked.message)
            for blocked in decisions.blocked
        },
    }


@pytest.mark.parametrize("seed", range(60))
def test_nobody_gets_anything_of_a_spent_budget_and_a_cache_changes_nothing(seed: int) -> None:
    chance = Random(seed)
    item = budgeted(seed, frozenset(chance.sample(sorted(DRAWN), 5)))
    cache = CycleCache()
    asked = {"pending": item.pending, "policy": item.policy, "now": item.now}
    decide(CycleInput(snapshot=replace(item.snapshot, spent={}), **asked), cache=cache)
    decisions = decide(CycleInput(snapshot=item.snapshot, **asked), cache=cache)
    assert decisions == item.decide()
    assert violations(snapshot=item.snapshot, decisions=decisions, **asked) == ()
    queue_of = {gang.uid: gang.queue for gang in item.pending}
    spent = spent_queues(item)
    for blocked in decisions.blocked:
        is_budget = blocked.reason is BlockReason.BUDGET_SPENT
        assert is_budget == (queue_of.get(blocked.uid) in spent)


@pytest.mark.parametrize("seed", range(60))
def test_a_spent_budget_is_a_held_queue_by_another_name(seed: int) -> None:
    chance = Random(seed)
    item = budgeted(seed, frozenset(chance.sample(sorted(DRAWN), 5)) - STILL)
    spent = spent_queues(item)
    held = replace(
        item.snapshot,
        spent={},
        queues=tuple(
            replace(queue, budget=None, held=queue.name in spent) for queue in item.snapshot.queues
        ),
    )
    assert answers(item.decide()) == answers(replace(item, snapshot=held).decide())


@pytest.mark.parametrize("seed", range(60))
def test_every_kind_of_budget_keeps_its_word_and_a_cache_changes_nothing(seed: int) -> None:
    chance = Random(seed)
    given = budgeted(seed, frozenset(chance.sample(sorted(DRAWN), 5)))
    snapshot = replace(
        given.snapshot,
        queues=tuple(
            replace(queue, budget=budget_of_any_kind(chance)) for queue in given.snapshot.queues
        ),
        spent={queue.name: some_days(chance) for queue in given.snapshot.queues},
        spent_prices={queue.name: some_days(chance) for queue in given.snapshot.queues},
        spent_by_user={
            queue.name: {gang.user: some_days(chance) for gang in given.pending}
            for queue in given.snapshot.queues
        },
    )
    item, cache = replace(given, snapshot=snapshot), CycleCache()
    asked = {"pending": item.pending, "policy": item.policy, "now": item.now}
    decisions = item.decide()
    for _ in range(2):
        assert decide(CycleInput(snapshot=snapshot, **asked), cache=cache) == decisions
    assert violations(snapshot=snapshot, decisions=decisions, **asked) == ()


HOUR, DAY, MONDAY = 3600, 86_400, 19_996
EPOCH = date(1970, 1, 1)


def period_of(day: int, refill: Refill) -> tuple[int, int]:
    """The week or month of a day."""
    moment = EPOCH + timedelta(days=day)
    year, week, _ = moment.isocalendar()
    return (year, week) if refill is Refill.WEEKLY else (moment.year, moment.month)


@pytest.mark.parametrize("seed", range(300))
def test_only_the_week_or_month_before_is_paid_for_and_a_whole_budget_at_most(seed: int) -> None:
    """What was had still earlier, under whatever settings, spends nobody's budget."""
    chance = Random(seed)
    budget = Budget(
        gpu_hours=chance.randint(1, 60),
        refill=chance.choice(list(Refill)),
        credit_gpu_hours=chance.choice([0, 0, 5, 40]),
    )
    assert budget.refill is not None
    today = 20_000 + seed
    days = {
        today - chance.randint(0, 120): chance.randint(0, 30) * HOUR
        for _ in range(chance.randint(1, 40))
    }
    present = period_of(today, budget.refill)
    first = next(
        day for day in range(today, today - 40, -1) if period_of(day - 1, budget.refill) != present
    )
    before = period_of(first - 1, budget.refill)
    had = sum(each for day, each in days.items() if day >= first)
    had_before = sum(each for day, each in days.items() if period_of(day, budget.refill) == before)
    whole, credit = budget.gpu_hours * HOUR, budget.credit_gpu_hours * HOUR
    carried = window_gpu_seconds(days, budget=budget, now=today * DAY + 1.0) - had
    overdrawn = min(whole, max(0, had_before - whole))
    assert overdrawn <= carried <= min(whole, max(overdrawn, credit))


@pytest.mark.parametrize("seed", range(100))
def test_who_starts_only_what_is_left_has_no_more_than_the_budget_over_the_years(seed: int) -> None:
    chance = Random(seed)
    hours = chance.randint(1, 20)
    budget = Budget(
        gpu_hours=hours, refill=Refill.WEEKLY, credit_gpu_hours=chance.randint(0, hours)
    )
    bound = (budget.gpu_hours + budget.credit_gpu_hours) * HOUR
    days: dict[int, int] = {}
    for week in range(12):
        now = float((MONDAY + 7 * week) * DAY)
        left = max(0, bound - window_gpu_seconds(days, budget=budget, now=now))
        days[MONDAY + 7 * week] = chance.choice([left, chance.randint(0, left)])
        allowed = (week + 1) * budget.gpu_hours + budget.credit_gpu_hours
        assert sum(days.values()) <= allowed * HOUR
