"""Gangs that start together or not at all."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import BlockReason, CycleInput, Decisions, Gang, RemedyKind, Role, decide
from drumline_scheduler.queueing.groups import MOST_KINDS
from drumline_scheduler.work import Work
from tests.texts import missing
from tests.unit.scheduler.builders import (
    BEST_EFFORT,
    STRICT,
    admitted,
    after,
    cluster,
    gang,
    node,
    pod,
    queue,
    racks,
    run,
    still_waiting,
    without,
)


def pair(group: str, *names: str, **changes: object) -> list[Gang]:
    """The gangs of a group, one after the other in age."""
    return [
        replace(gang(name, gpus=2, at=i), group=group, group_gangs=len(names), **changes)
        for i, name in enumerate(names)
    ]


def reasons_of(decisions: Decisions) -> dict[str, BlockReason]:
    return {blocked.key.removeprefix("training/"): blocked.reason for blocked in decisions.blocked}


def started(decisions: Decisions) -> list[str]:
    return [placed.key.removeprefix("training/") for placed in decisions.placed]


def test_s6_of_two_groups_that_came_mixed_one_whole_group_runs() -> None:
    (a, b), (c, d) = pair("one", "a", "b"), pair("two", "c", "d")
    waiting = [replace(each, queued_at=i) for i, each in enumerate([a, c, b, d])]
    decisions = run(cluster(*racks(count=1)), *waiting)
    assert started(decisions) == ["a", "b"]
    assert reasons_of(decisions) == {
        "c": BlockReason.INSUFFICIENT_GPUS,
        "d": BlockReason.INSUFFICIENT_GPUS,
    }


def test_a_group_with_room_for_only_one_holds_nothing_and_lets_others_go() -> None:
    members = pair("g", "a", "b")
    decisions = run(cluster(node("n0", "rack-0")), *members, gang("other", gpus=2, at=9))
    assert started(decisions) == ["other"]
    assert reasons_of(decisions) == {
        "a": BlockReason.WAITING_FOR_GROUP,
        "b": BlockReason.INSUFFICIENT_GPUS,
    }
    could = decisions.blocked[0]
    assert could.blockers == ("training/b",)
    assert not missing(could.message, "group g", "training/b", "InsufficientGpus")
    assert could.remedy is not None
    assert could.remedy.kind is RemedyKind.WAIT


def test_a_gang_that_does_not_fit_by_itself_ends_the_search_for_an_order() -> None:
    members = pair("g", "b", "c", "d", "a")
    members[3] = replace(members[3], per_pod=pod(3))
    given = CycleInput(
        snapshot=cluster(*racks(count=4)), pending=tuple(members), policy=BEST_EFFORT, now=0.0
    )
    decisions = decide(given, work=(work := Work()))
    assert reasons_of(decisions)["a"] is BlockReason.EXCEEDS_CLUSTER
    assert work.steps <= 4 * 4 + 4  # all orders that begin with another gang take 4 x 18


def test_an_incomplete_group_waits_and_says_how_many_are_there() -> None:
    first, _ = pair("g", "a", "b")
    decisions = run(cluster(*racks()), first)
    assert reasons_of(decisions) == {"a": BlockReason.WAITING_FOR_GROUP}
    assert not missing(decisions.blocked[0].message, "1 of 2 gangs")


def test_a_late_gang_of_a_running_group_starts_alone() -> None:
    first, second = pair("g", "a", "b")
    snapshot = cluster(*racks(), running=[admitted(first, "n0")])
    assert started(run(snapshot, second)) == ["b"]


def test_a_group_is_known_by_its_namespace_too() -> None:
    first, second = pair("g", "a", "b")
    stranger = replace(second, key="elsewhere/b")
    assert started(run(cluster(*racks()), first, stranger)) == []


def test_a_group_stands_where_its_first_gang_stands() -> None:
    (a, b), other = pair("g", "a", "b"), gang("other", nodes=2, gpus=2, at=5)
    decisions = run(
        cluster(*racks(count=1)), replace(a, queued_at=1), other, replace(b, queued_at=9)
    )
    assert started(decisions) == ["a", "b"]


def test_what_only_fits_in_another_order_is_found() -> None:
    """The small one, first in turn, would take the only rack in which the big one fits."""
    nodes = [node("n0", "rack-0", gpus=3), node("n1", "rack-1", gpus=2), node("n2", "rack-1")]
    small = replace(gang("small", nodes=1, gpus=2, at=0), required_level="rack")
    big = replace(gang("big", nodes=1, gpus=3, at=1), required_level="rack")
    tight = [replace(each, group="g", group_gangs=2) for each in (small, big)]
    nodes[1] = replace(nodes[1], unschedulable=True)
    decisions = run(cluster(*nodes), *tight)
    assert sorted(started(decisions)) == ["big", "small"]


def test_a_refusal_in_vain_is_not_told_to_those_who_come_after_the_group_gave_up() -> None:
    """Within the group `b` finds nothing because `a` sits there; alone it fits."""
    first, second = pair("g", "a", "b")
    single = gang("single", gpus=2, at=9)
    decisions = run(cluster(node("n0", "rack-0")), first, second, single)
    assert started(decisions) == ["single"]


def test_strict_holds_the_pool_behind_a_group_that_waits_for_capacity() -> None:
    runs = admitted(gang("r", gpus=1), "n1")
    decisions = run(
        cluster(*racks(count=1), running=[runs]),
        *pair("g", "a", "b"),
        gang("small", at=9),
        policy=STRICT,
    )
    assert started(decisions) == []
    assert reasons_of(decisions)["small"] is BlockReason.BEHIND_HIGHER_PRIORITY


def test_a_group_whose_gangs_have_different_queues_and_sizes_starts_whole() -> None:
    item, two = pair("g", "a", "b")
    decisions = run(cluster(*racks()), item, replace(two, nodes=2))
    assert [len(placed.assignment) for placed in decisions.placed] == [1, 2]
    snapshot = after(cluster(*racks()), [item, replace(two, nodes=2)], decisions)
    assert len(snapshot.admitted) == 2


def kinds(count: int) -> list[Gang]:
    """Return a group in which all gangs differ."""
    members = pair("g", *(f"m{number:03}" for number in range(count)))
    return [
        replace(each, per_pod=replace(pod(2), cpu_millis=1000 + number))
        for number, each in enumerate(members)
    ]


def test_a_group_of_too_many_kinds_of_gangs_does_not_start() -> None:
    free = cluster(*racks(count=MOST_KINDS))
    assert len(run(free, *kinds(MOST_KINDS)).placed) == MOST_KINDS
    decisions = run(free, *kinds(MOST_KINDS + 1))
    assert not decisions.placed
    assert not missing(decisions.blocked[0].message, str(MOST_KINDS + 1), str(MOST_KINDS))
    # Equal gangs are one kind.
    equal = pair("g", *(f"m{number:03}" for number in range(MOST_KINDS + 1)))
    assert len(run(free, *equal).placed) == MOST_KINDS + 1


def test_costly_kinds_are_tried_in_fewer_orders() -> None:
    """Four gangs with eight roles do not fit together. Trying 24 orders would take 96 searches."""
    roles = tuple(Role(name=f"r{index}", pods=40, per_pod=pod(0, cpu=1)) for index in range(8))
    members = [replace(each, roles=roles) for each in kinds(4)]
    given = CycleInput(
        snapshot=cluster(*racks(count=1)), pending=tuple(members), policy=BEST_EFFORT, now=0.0
    )
    alone = replace(given, pending=(replace(members[0], group="", group_gangs=1),))
    decide(given, work=(together := Work()))
    decide(alone, work=(single := Work()))
    assert together.steps <= 12 * single.steps


LOW = [admitted(gang(f"r{i}", gpus=2), f"n{i}") for i in range(2)]
FULL = cluster(*racks(count=1), queues=(queue("research", 100),), running=LOW)


def victims_of(decisions: Decisions) -> dict[str, list[str]]:
    return {
        each.key.removeprefix("training/"): [victim.key for victim in each.victims]
        for each in decisions.preemptions
    }


def test_a_group_evicts_for_all_its_gangs_or_for_none() -> None:
    urgent = {"priority": 5}
    assert victims_of(run(FULL, *pair("g", "a", "b", **urgent))) == {
        "a": ["training/r0"],
        "b": ["training/r1"],
    }
    assert victims_of(run(FULL, *pair("g", "a", "b", "c", **urgent))) == {}
    first, second = pair("g", "a", "b", **urgent)
    assert victims_of(run(FULL, first, replace(second, refusal="ResourceQuota"))) == {}
    assert victims_of(run(FULL, first, replace(second, preempts=False))) == {}
    assert victims_of(run(FULL, first, replace(second, retry_at=9.0))) == {}


def test_a_gang_of_a_group_that_fits_keeps_its_place_until_the_victims_left() -> None:
    members = pair("g", "a", "b", priority=5)
    snapshot = cluster(*racks(count=1), queues=FULL.queues, running=LOW[:1])
    first = run(snapshot, *members)
    assert victims_of(first) == {"a": [], "b": ["training/r0"]}
    waiting, later = still_waiting(members, first), after(snapshot, members, first)
    decisions = run(later, *waiting, gang("small", at=99.0))
    assert (started(decisions), reasons_of(decisions)["a"]) == ([], BlockReason.WAITING_FOR_VICTIMS)
    assert started(run(without(later, "r0"), *waiting)) == ["a", "b"]


def test_places_are_kept_for_a_whole_group_only() -> None:
    members = pair("g", "a", "b", priority=5)
    first = run(FULL, *members)
    a, b = still_waiting(members, first)
    other = gang("other", gpus=2, at=99.0)
    free = cluster(*racks(count=1), queues=FULL.queues, running=LOW[:1])
    # The other gang was deleted, or the write of its nomination failed.
    assert started(run(free, a, other)) == ["other"]
    half = run(FULL, a, replace(b, nominated=(), nominated_pool=""))
    assert victims_of(half) == {"a": ["training/r0"], "b": ["training/r1"]}
