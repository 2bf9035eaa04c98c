"""Who holds what of a queue, what is derived of it, and copies that share it until one changes."""

from __future__ import annotations

from drumline_scheduler.quota.usage import GangUsage, UsageByQueue
from tests.unit.scheduler.builders import gang


def held(name: str, gpus: int, *, leaf: int = 0, priority: int = 0) -> GangUsage:
    return GangUsage(gang=gang(name, priority=priority), leaf=leaf, size=1, gpus=gpus)


def three() -> UsageByQueue:
    usage = UsageByQueue()
    for item in (held("a", 2, priority=1), held("b", 4), held("c", 8), held("idle", 0)):
        usage.put(item)
    return usage


def names(usage: UsageByQueue) -> list[str]:
    return [each_held.gang.key.partition("/")[2] for each_held in usage.in_eviction_order(0)]


def test_the_lowest_priority_and_then_the_biggest_would_leave_first() -> None:
    assert names(three()) == ["c", "b", "a"]
    assert names(UsageByQueue()) == []


def test_sums_are_those_of_all_gangs_of_a_queue() -> None:
    sums = three().sums(0)
    assert (sums.gpus, sums.largest, sums.by_priority) == (14, 8, {1: 2, 0: 12})
    assert UsageByQueue().sums(0).gpus == 0


def test_a_change_is_seen_in_everything_that_was_derived_before() -> None:
    usage = three()
    assert (names(usage), usage.sums(0).gpus) == (["c", "b", "a"], 14)
    usage.drop(leaf=0, uid=gang("c").uid)
    usage.put(held("d", 16))
    assert (names(usage), usage.sums(0).gpus) == (["d", "b", "a"], 22)


def test_copies_do_not_see_each_others_changes() -> None:
    first = three()
    second = first.copy()
    first.drop(leaf=0, uid=gang("c").uid)
    second.put(held("d", 1, leaf=1))
    third = second.copy()
    second.put(held("e", 1))
    assert [names(item) for item in (first, second, third)] == [
        ["b", "a"],
        ["c", "b", "e", "a"],
        ["c", "b", "a"],
    ]
    assert [len(list(item.all())) for item in (first, second, third)] == [3, 6, 5]
    assert (list(first.leaves), list(second.leaves)) == ([0], [0, 1])
