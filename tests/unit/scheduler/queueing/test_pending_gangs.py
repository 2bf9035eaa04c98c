"""Those who wait stand in the same order, however they came and went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import BlockReason, Gang
from drumline_scheduler.model import order_key
from drumline_scheduler.queueing.equivalence_classes import EquivalenceClasses
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.rejections import Rejection
from tests.unit.scheduler.builders import gang


def crowd(count: int, *, since: int = 0) -> list[Gang]:
    return [
        gang(f"g{i:04}", nodes=1 + i % 3, priority=i % 2, at=i * 7 % 1000)
        for i in range(since, since + count)
    ]


def is_consistent(pending: PendingGangs, gangs: list[Gang]) -> bool:
    expected = sorted(gangs, key=order_key)
    chains = sorted((each for chain in pending.chains for each in chain), key=order_key)
    return (
        pending.gangs == expected == chains
        and pending.uids == [each.uid for each in expected]
        and len(pending.blocked) == len(expected)
        and [pending.index(each) for each in expected] == list(range(len(expected)))
        and all(list(chain) == sorted(chain, key=order_key) for chain in pending.chains)
    )


@pytest.mark.parametrize("changes", [1, 30, 700])
def test_the_gangs_are_sorted_after_any_number_of_changes(changes: int) -> None:
    chance, pending, gangs = Random(changes), PendingGangs(EquivalenceClasses()), crowd(800)
    pending.update(gangs)
    assert is_consistent(pending, gangs)
    for step in range(3):
        went = chance.sample(gangs, changes)
        came = crowd(changes, since=1000 * (step + 1))
        left = [each for each in gangs if each not in went]
        gangs = [*left, *came] if step % 2 else [*came, *left]
        pending.update(gangs)
        assert is_consistent(pending, gangs)
        assert sorted(pending.removed, key=order_key) == sorted(went, key=order_key)
        assert pending.added == sorted(came, key=order_key)


def test_an_appended_gang_is_added_and_none_is_removed() -> None:
    pending, gangs = PendingGangs(EquivalenceClasses()), crowd(10)
    pending.update(gangs)
    late = gang("late", priority=9)
    pending.update([*gangs, late])
    assert is_consistent(pending, [*gangs, late])
    assert (pending.added, pending.removed) == ([late], [])
    pending.update([*gangs, late])
    assert (pending.added, pending.removed) == ([], [])


@pytest.mark.parametrize("changes", [5, 300])
def test_answers_move_with_their_gangs(changes: int) -> None:
    rejection = Rejection(reason=BlockReason.EXCEEDS_QUOTA, message="no quota")
    pending, gangs = PendingGangs(EquivalenceClasses()), crowd(800)
    pending.update(gangs)
    pending.blocked[:] = rejection.of_all(pending.gangs)
    left, came = gangs[changes:], crowd(changes, since=1000)
    pending.update([*came, *left])
    blocked = dict(zip(pending.uids, pending.blocked, strict=True))
    assert [blocked[each.uid] for each in left] == list(rejection.of_all(left))
    assert [blocked[each.uid] for each in came] == [None] * changes


@pytest.mark.parametrize(
    "duplicated",
    [
        lambda gangs: [*gangs, gangs[3]],
        lambda gangs: [*gangs[:3], gangs[4], *gangs[4:]],
        lambda gangs: [*gangs, gang("g0003")],
        lambda gangs: [gang("new"), *gangs, gang("new")],
        lambda gangs: [gangs[0], gangs[0], *reversed(gangs)],
    ],
)
def test_a_gang_listed_twice_raises_and_changes_nothing(
    duplicated: Callable[[list[Gang]], list[Gang]],
) -> None:
    pending, gangs = PendingGangs(EquivalenceClasses()), crowd(10)
    pending.update(gangs)
    with pytest.raises(ValueError, match="waits twice"):
        pending.update(duplicated(gangs))
    assert is_consistent(pending, gangs)
    pending.update(gangs[1:])
    assert is_consistent(pending, gangs[1:])


def test_an_admitted_gang_must_not_be_pending() -> None:
    pending, gangs = PendingGangs(EquivalenceClasses()), crowd(10)
    pending.update(gangs)
    pending.reject_admitted(["other"])
    with pytest.raises(ValueError, match="admitted already"):
        pending.reject_admitted(["other", gangs[4].uid])


def test_an_equal_gang_that_is_another_object_replaces_it() -> None:
    old, new = gang("a"), gang("a")
    pending = PendingGangs(EquivalenceClasses())
    pending.update([old])
    pending.update([new])
    assert is_consistent(pending, [new])
    assert pending.gangs[0] is new


@pytest.mark.parametrize("count", [10, 800])
def test_user_limits_move_the_gangs_of_their_queues_alone(count: int) -> None:
    gangs = [
        replace(each, queue="limited" if index % 3 else "research", user=f"user-{index % 2}")
        for index, each in enumerate(crowd(count))
    ]
    of_limited = [each for each in gangs if each.queue == "limited"]
    pending, came = PendingGangs(EquivalenceClasses()), gang("came", queue="limited", user="user-0")

    def partition(pending: PendingGangs) -> set[frozenset[str]]:
        chains = [frozenset(each.uid for each in chain) for chain in pending.chains]
        return {chain for chain in chains if chain}

    pending.update(gangs)
    for limited in (frozenset({"limited"}), frozenset[str](), frozenset({"limited", "none"})):
        pending.update([*gangs, came], user_limited=limited)
        assert is_consistent(pending, [*gangs, came])
        fresh = PendingGangs(EquivalenceClasses(limited))
        fresh.update([*gangs, came], user_limited=limited)
        assert partition(pending) == partition(fresh)
        assert {each.uid for each in pending.added} == {each.uid for each in [*of_limited, came]}
        pending.update([*gangs, came], user_limited=limited)
        assert (pending.added, pending.removed) == ([], [])
