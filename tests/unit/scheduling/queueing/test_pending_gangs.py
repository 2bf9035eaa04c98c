"""Those who wait stand in the same order, however they came and went."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from drumline.scheduling import BlockReason, Gang
from drumline.scheduling.queueing.equivalence_classes import EquivalenceClasses
from drumline.scheduling.queueing.pending_gangs import PendingGangs
from drumline.scheduling.quota.ordering import order_key
from drumline.scheduling.rejections import Rejection
from tests.unit.scheduling.builders import gang


def crowd(count: int, *, since: int = 0) -> list[Gang]:
    return [
        gang(f"g{i:04}", nodes=1 + i % 3, priority=i % 2, at=i * 7 % 1000)
        for i in range(since, since + count)
    ]


def stands(waiting: PendingGangs, gangs: list[Gang]) -> bool:
    line = sorted(gangs, key=order_key)
    chains = sorted((one for chain in waiting.chains for one in chain), key=order_key)
    return (
        waiting.gangs == line == chains
        and waiting.uids == [one.uid for one in line]
        and len(waiting.told) == len(line)
        and [waiting.place(one) for one in line] == list(range(len(line)))
        and all(list(chain) == sorted(chain, key=order_key) for chain in waiting.chains)
    )


@pytest.mark.parametrize("changes", [1, 30, 700])
def test_the_line_is_sorted_after_any_number_of_changes(changes: int) -> None:
    chance, waiting, gangs = Random(changes), PendingGangs(EquivalenceClasses()), crowd(800)
    waiting.update(gangs)
    assert stands(waiting, gangs)
    for step in range(3):
        went = chance.sample(gangs, changes)
        came = crowd(changes, since=1000 * (step + 1))
        left = [one for one in gangs if one not in went]
        gangs = [*left, *came] if step % 2 else [*came, *left]
        waiting.update(gangs)
        assert stands(waiting, gangs)
        assert sorted(waiting.gone, key=order_key) == sorted(went, key=order_key)
        assert waiting.fresh == sorted(came, key=order_key)


def test_who_comes_last_is_new_and_nobody_is_gone() -> None:
    waiting, gangs = PendingGangs(EquivalenceClasses()), crowd(10)
    waiting.update(gangs)
    late = gang("late", priority=9)
    waiting.update([*gangs, late])
    assert stands(waiting, [*gangs, late])
    assert (waiting.fresh, waiting.gone) == ([late], [])
    waiting.update([*gangs, late])
    assert (waiting.fresh, waiting.gone) == ([], [])


@pytest.mark.parametrize("changes", [5, 300])
def test_what_they_were_told_goes_with_them(changes: int) -> None:
    refusal = Rejection(reason=BlockReason.EXCEEDS_QUOTA, message="no quota")
    waiting, gangs = PendingGangs(EquivalenceClasses()), crowd(800)
    waiting.update(gangs)
    waiting.told[:] = refusal.of_all(waiting.gangs)
    left, came = gangs[changes:], crowd(changes, since=1000)
    waiting.update([*came, *left])
    told = dict(zip(waiting.uids, waiting.told, strict=True))
    assert [told[one.uid] for one in left] == list(refusal.of_all(left))
    assert [told[one.uid] for one in came] == [None] * changes


@pytest.mark.parametrize(
    "twins",
    [
        lambda gangs: [*gangs, gangs[3]],
        lambda gangs: [*gangs[:3], gangs[4], *gangs[4:]],
        lambda gangs: [*gangs, gang("g0003")],
        lambda gangs: [gang("new"), *gangs, gang("new")],
        lambda gangs: [gangs[0], gangs[0], *reversed(gangs)],
    ],
)
def test_nobody_waits_twice_and_the_line_stays_as_it_was(
    twins: Callable[[list[Gang]], list[Gang]],
) -> None:
    waiting, gangs = PendingGangs(EquivalenceClasses()), crowd(10)
    waiting.update(gangs)
    with pytest.raises(ValueError, match="waits twice"):
        waiting.update(twins(gangs))
    assert stands(waiting, gangs)
    waiting.update(gangs[1:])
    assert stands(waiting, gangs[1:])


def test_who_is_admitted_does_not_wait() -> None:
    waiting, gangs = PendingGangs(EquivalenceClasses()), crowd(10)
    waiting.update(gangs)
    waiting.reject(["somebody"])
    with pytest.raises(ValueError, match="admitted already"):
        waiting.reject(["somebody", gangs[4].uid])


def test_an_equal_gang_that_is_another_object_takes_the_place() -> None:
    old, new = gang("a"), gang("a")
    waiting = PendingGangs(EquivalenceClasses())
    waiting.update([old])
    waiting.update([new])
    assert stands(waiting, [new])
    assert waiting.gangs[0] is new
