"""The backfill rule: who waits first has places on the timeline, and nobody makes it late."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    BlockReason,
    CycleInput,
    Decisions,
    Gang,
    Policy,
    Queue,
    Reservation,
    Role,
    WaitingRule,
    cycle_session,
    decide,
)
from drumline_scheduler.admission import Admission
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, queue, racks, run

BACKFILL = Policy(waiting=WaitingRule.BACKFILL)
NOW = 1000.0


def runs(name: str, *places: str, left: float | None, gpus: int = 2, **changes: object) -> Admitted:
    """A running gang that ends in so many seconds; None: nobody knows when."""
    limit = None if left is None else NOW + left
    item = gang(name, nodes=len(places), gpus=gpus, max_runtime_seconds=limit)
    return admitted(replace(item, **changes), *places)


def small(name: str, *, seconds: float | None, at: float = 9, **changes: object) -> Gang:
    return replace(gang(name, gpus=2, at=at, max_runtime_seconds=seconds), **changes)


def started(decisions: Decisions) -> list[str]:
    return [placed.key.removeprefix("training/") for placed in decisions.placed]


def why(decisions: Decisions, name: str) -> BlockReason:
    return next(
        blocked.reason for blocked in decisions.blocked if blocked.key == f"training/{name}"
    )


def starts(decisions: Decisions) -> dict[str, float]:
    return {
        reservation.key.removeprefix("training/"): reservation.start_at
        for reservation in decisions.reservations
    }


def test_the_head_gets_its_places_at_the_moment_the_last_of_them_is_left() -> None:
    snapshot = cluster(
        *racks(count=1, nodes=3), running=[runs("a", "n0", left=50), runs("b", "n1", left=90)]
    )
    decisions = run(snapshot, gang("big", nodes=3, gpus=2), policy=BACKFILL, now=NOW)
    assert decisions.reservations == (
        Reservation(
            key="training/big",
            uid="uid-big",
            pool="h100",
            assignment=("n0", "n1", "n2"),
            start_at=NOW + 90,
        ),
    )


@pytest.mark.parametrize(
    ("seconds", "passes"), [(90.0, True), (90.1, False), (None, False)], ids=str
)
def test_who_comes_later_starts_only_if_it_has_ended_by_then(
    seconds: float | None, passes: bool
) -> None:
    snapshot = cluster(*racks(count=1, nodes=2), running=[runs("a", "n0", left=90)])
    decisions = run(
        snapshot,
        gang("big", nodes=2, gpus=2),
        small("s", seconds=seconds),
        policy=BACKFILL,
        now=NOW,
    )
    assert started(decisions) == (["s"] if passes else [])
    if not passes:
        assert why(decisions, "s") is BlockReason.WOULD_DELAY_RESERVATION
        assert decisions.blocked[1].blockers == ("training/big",)


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"is_foreign": True}, None),
        ({"is_foreign": True, "ends_at": NOW + 300}, NOW + 300),
        ({"is_foreign": True, "ends_at": NOW - 300}, NOW + 90),
        ({"is_overdue": True}, None),
        ({}, NOW + NOW),
    ],
    ids=str,
)
def test_nobody_counts_on_pods_whose_end_is_not_known(
    changes: dict[str, object], start: float | None
) -> None:
    held = replace(runs("a", "n0", left=None), **changes)
    snapshot = cluster(*racks(count=1, nodes=2), running=[held, runs("b", "n1", left=90)])
    head, second = gang("big", nodes=2, gpus=2), gang("next", gpus=2, at=1)
    single = replace(BACKFILL, reservations=1)
    decisions = run(snapshot, head, second, policy=single, now=NOW)
    assert starts(decisions) == ({"big": start} if start else {"next": NOW + 90})


def test_under_best_effort_the_same_gang_passes() -> None:
    snapshot = cluster(*racks(count=1, nodes=2), running=[runs("a", "n0", left=90)])
    decisions = run(snapshot, gang("big", nodes=2, gpus=2), small("s", seconds=None), now=NOW)
    assert started(decisions) == ["s"]
    assert decisions.reservations == ()


def test_an_endless_gang_starts_where_nobody_needs_the_places() -> None:
    """The head needs one whole rack; best fit would take a place of it, another rack is free."""
    nodes = [*racks(count=1, nodes=2), node("n2", "rack-1", gpus=4)]
    snapshot = cluster(*nodes, running=[runs("a", "n0", left=90)])
    head = gang("big", nodes=2, gpus=2, required_level="rack", excluded_nodes=frozenset({"n2"}))
    decisions = run(snapshot, head, small("s", seconds=None), policy=BACKFILL, now=NOW)
    assert [(placed.key, placed.assignment) for placed in decisions.placed] == [
        ("training/s", ("n2",))
    ]


def test_it_may_take_reserved_places_if_the_head_finds_others_as_early() -> None:
    """`picky` can only use n0, which the head would have had; at that time n2 is as good for it."""
    snapshot = cluster(
        *racks(count=1, nodes=3), running=[runs("a", "n1", left=90), runs("b", "n2", left=90)]
    )
    picky = small("picky", seconds=None, excluded_nodes=frozenset({"n1", "n2"}))
    decisions = run(snapshot, gang("big", nodes=2, gpus=2), picky, policy=BACKFILL, now=NOW)
    assert started(decisions) == ["picky"]
    assert starts(decisions) == {"big": NOW + 90}
    assert decisions.reservations[0].assignment == ("n1", "n2")


def test_quota_counts_on_the_timeline_too() -> None:
    queues = (Queue(name="research", nominal={"h100": 4}),)
    snapshot = cluster(*racks(count=2, nodes=2), queues=queues, running=[runs("a", "n0", left=90)])
    head = gang("big", nodes=2, gpus=2)
    decisions = run(
        snapshot,
        head,
        small("long", seconds=100, at=8),
        small("short", seconds=80),
        policy=BACKFILL,
        now=NOW,
    )
    assert started(decisions) == ["short"]
    assert why(decisions, "big") is BlockReason.QUOTA_EXHAUSTED
    assert why(decisions, "long") is BlockReason.WOULD_DELAY_RESERVATION
    assert starts(decisions)["big"] == NOW + 90


def test_as_many_have_reservations_as_the_policy_says_and_each_waits_for_those_before() -> None:
    snapshot = cluster(*racks(count=1, nodes=1), running=[runs("a", "n0", left=90)])
    heads = [small(f"h{i}", seconds=10, at=i) for i in range(4)]
    policy = replace(BACKFILL, reservations=3)
    decisions = run(snapshot, *heads, policy=policy, now=NOW)
    assert starts(decisions) == {"h0": NOW + 90, "h1": NOW + 100, "h2": NOW + 110}


def test_a_later_reservation_may_begin_first_where_it_harms_nobody() -> None:
    snapshot = cluster(
        *racks(count=1, nodes=2), running=[runs("a", "n0", left=50), runs("b", "n1", left=90)]
    )
    big = gang("big", nodes=2, gpus=2)
    fits, late = small("fits", seconds=40, at=2), small("late", seconds=41, at=1)
    decisions = run(snapshot, big, late, fits, policy=BACKFILL, now=NOW)
    assert starts(decisions)["big"] == NOW + 90
    assert starts(decisions)["fits"] == NOW + 50
    assert "late" not in starts(decisions)  # behind a gang that may run for ever


def test_of_unknown_length_a_gang_is_expected_to_run_as_long_again() -> None:
    snapshot = cluster(
        *racks(count=1, nodes=2),
        running=[runs("a", "n0", left=None), replace(runs("b", "n1", left=None), admitted_at=990)],
    )
    pending = [gang("one", gpus=2), gang("two", gpus=2, at=1)]
    decisions = run(snapshot, *pending, policy=BACKFILL, now=NOW)
    assert starts(decisions) == {"one": NOW + 60, "two": NOW + 1000}


def test_an_end_that_has_passed_is_expected_in_a_minute() -> None:
    snapshot = cluster(*racks(count=1, nodes=1), running=[runs("a", "n0", left=-5)])
    decisions = run(snapshot, gang("head", gpus=2), policy=BACKFILL, now=NOW)
    assert isclose(starts(decisions)["head"], NOW + 60)


@pytest.mark.parametrize(
    ("ends_at", "limit", "expected"),
    [
        (NOW + 300, None, NOW + 300),
        (NOW + 300, 500.0, NOW + 300),
        (NOW + 300, 200.0, NOW + 200),  # its deadline comes first
        (NOW + 5, None, NOW + 60),
        (NOW - 5, 200.0, NOW + 200),  # it said so, and still runs
    ],
)
def test_a_gang_ends_when_its_steps_say(
    ends_at: float, limit: float | None, expected: float
) -> None:
    held = replace(runs("a", "n0", left=limit), ends_at=ends_at)
    snapshot = cluster(*racks(count=1, nodes=1), running=[held])
    decisions = run(snapshot, gang("head", gpus=2), policy=BACKFILL, now=NOW)
    assert starts(decisions) == {"head": expected}


def test_a_gang_that_ends_before_the_reported_end_of_another_is_backfilled() -> None:
    held = replace(runs("a", "n0", left=None), ends_at=NOW + 900, admitted_at=NOW - 60)
    snapshot = cluster(*racks(count=1, nodes=2), running=[held])
    pending = [gang("head", nodes=2, gpus=2), small("short", seconds=600)]
    assert started(run(snapshot, *pending, policy=BACKFILL, now=NOW)) == ["short"]
    silent = cluster(*racks(count=1, nodes=2), running=[replace(held, ends_at=None)])
    assert started(run(silent, *pending, policy=BACKFILL, now=NOW)) == []


def test_who_was_told_to_leave_counts_as_gone() -> None:
    leaving = replace(runs("a", "n0", left=None), leaving=True)
    snapshot = cluster(*racks(count=1, nodes=2), running=[leaving, runs("b", "n1", left=90)])
    decisions = run(snapshot, gang("head", nodes=2, gpus=2), policy=BACKFILL, now=NOW)
    assert starts(decisions) == {"head": NOW + 90}


def test_no_reservation_for_what_no_leaving_helps() -> None:
    snapshot = cluster(*racks(count=1, nodes=1), running=[runs("a", "n0", left=90)])
    hopeless = gang("hopeless", nodes=9, gpus=2)
    decisions = run(snapshot, hopeless, gang("next", gpus=2, at=1), policy=BACKFILL, now=NOW)
    assert starts(decisions) == {"next": NOW + 90}


def test_a_group_has_one_reservation_for_all_its_gangs() -> None:
    snapshot = cluster(
        *racks(count=1, nodes=2), running=[runs("a", "n0", left=50), runs("b", "n1", left=90)]
    )
    members = [
        small(name, seconds=10, at=i, group="g", group_gangs=2) for i, name in enumerate("xy")
    ]
    decisions = run(snapshot, *members, policy=BACKFILL, now=NOW)
    assert starts(decisions) == {"x": NOW + 90, "y": NOW + 90}


def test_the_words_do_not_change_while_time_passes() -> None:
    snapshot = cluster(*racks(count=1, nodes=2), running=[runs("a", "n0", left=900)])
    pending = [gang("big", nodes=2, gpus=2), small("s", seconds=None)]
    first, later = (run(snapshot, *pending, policy=BACKFILL, now=NOW + t) for t in (0, 100))
    assert first.blocked == later.blocked


def test_one_that_starts_leaves_less_for_the_next() -> None:
    """Of four nodes the head needs three at that time: one endless gang may go before it."""
    snapshot = cluster(
        *racks(count=1, nodes=4), running=[runs("a", "n0", left=90), runs("b", "n1", left=90)]
    )
    decisions = run(
        snapshot,
        gang("big", nodes=3, gpus=2),
        small("x", seconds=None, at=8),
        small("y", seconds=None, at=9),
        policy=BACKFILL,
        now=NOW,
    )
    assert started(decisions) == ["x"]
    assert why(decisions, "y") is BlockReason.WOULD_DELAY_RESERVATION
    assert starts(decisions)["big"] == NOW + 90


def test_a_reservation_may_begin_when_somebody_ends_who_starts_only_now() -> None:
    """On n1, where `s` goes in front of `big`; whoever runs already ends later."""
    snapshot = cluster(*racks(count=1, nodes=2), running=[runs("a", "n0", left=90)])
    decisions = run(
        snapshot,
        gang("big", nodes=2, gpus=2, at=1),
        small("s", seconds=30, at=2),
        small("t", seconds=10, at=3),
        policy=BACKFILL,
        now=NOW,
    )
    assert started(decisions) == ["s"]
    assert starts(decisions) == {"big": NOW + 90, "t": NOW + 30}


def test_who_lets_another_start_first_has_taken_nothing_of_the_plan() -> None:
    """It could start on b0, as the reservation would move to b1, but may only borrow there.

    The one that is entitled to the pool needs b1: with the reservation back on b0 it starts.
    """
    queues = (
        Queue(name="org", nominal={}),
        Queue(name="x", nominal={"a": 3, "b": 0}, parent="org"),
        Queue(name="y", nominal={"a": 0, "b": 3}, parent="org"),
        Queue(name="z", nominal={"a": 0, "b": 9}, parent="org"),
    )
    nodes = [node("a0", "r", gpus=1, pool="a")]
    nodes += [node(name, "r", gpus=4, pool="b") for name in ("b0", "b1")]
    running = [
        replace(runs(f"on-{name}", name, left=90, gpus=1, queue="z"), pool="b")
        for name in ("b0", "b1")
    ]
    snapshot = cluster(*nodes, queues=queues, pools=("a", "b"), running=running)
    whole_node = gang("whole-node", gpus=4, queue="z", priority=9, pool="b")
    borrows = gang("borrows", gpus=3, at=1, queue="x", pools=("a", "b"))
    borrows = replace(borrows, excluded_nodes=frozenset({"b1"}))
    entitled = gang("entitled", gpus=3, at=2, queue="y", pool="b")
    entitled = replace(entitled, excluded_nodes=frozenset({"b0"}))
    alone = run(snapshot, whole_node, borrows, policy=BACKFILL, now=NOW)
    assert (started(alone), starts(alone)) == (["borrows"], {"whole-node": NOW + 90})
    decisions = run(snapshot, whole_node, borrows, entitled, policy=BACKFILL, now=NOW)
    assert (started(decisions), starts(decisions)) == (["entitled"], {"whole-node": NOW + 90})


def test_a_member_of_a_group_that_would_fit_alone_has_taken_nothing_of_the_plan() -> None:
    """One member takes b0 and one is refused beside it. Alone it fits, but the third never does."""
    nodes = [node(name, "r", gpus=4) for name in ("b0", "b1")]
    running = [runs(f"on-{name}", name, left=90, gpus=1) for name in ("b0", "b1")]
    whole_node = gang("whole-node", gpus=4, priority=9)
    members = [
        gang(
            f"g{number}",
            gpus=gpus,
            priority=5,
            group="g",
            group_gangs=3,
            excluded_nodes=frozenset({"b1"}),
        )
        for number, gpus in enumerate([3, 3, 64])
    ]
    last = gang("last", gpus=3, excluded_nodes=frozenset({"b0"}))
    decisions = run(
        cluster(*nodes, running=running), whole_node, *members, last, policy=BACKFILL, now=NOW
    )
    assert (started(decisions), starts(decisions)) == (["last"], {"whole-node": NOW + 90})


def test_one_that_yields_to_several_is_searched_for_once_until_a_start_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It borrows in pool b. The first jobs of two other queues are asked before, and do not fit."""
    queues = (
        Queue(name="org", nominal={}),
        Queue(name="x", nominal={"a": 3, "b": 0}, parent="org"),
        *(Queue(name=name, nominal={"a": 0, "b": 4}, parent="org") for name in "uvw"),
    )
    nodes = [node("a0", "r", gpus=1, pool="a"), *(node(f"b{i}", gpus=3, pool="b") for i in "012")]
    snapshot = cluster(*nodes, queues=queues, pools=("a", "b"))
    borrows = gang("borrows", gpus=3, queue="x", pools=("a", "b"))
    asked = [gang(name, gpus=4, at=1, queue=name, pool="b") for name in "uvw"]
    searched: list[str] = []

    def find(self: Admission, **question: Any) -> Any:
        searched.append(f"{question['gang'].key[9:]} in {question['pool']}")
        return finds(self, **question)

    finds = Admission._find
    monkeypatch.setattr(Admission, "_find", find)
    decisions = run(snapshot, borrows, *asked, now=NOW)
    assert started(decisions) == ["borrows"]
    both = ["borrows in a", "borrows in b"]
    assert searched == [*both, "u in b", "v in b", "w in b"]
    # A start in between takes slots, so the search is made again.
    searched.clear()
    asked[0] = gang("u", gpus=3, at=1, queue="u", pool="b")
    assert started(run(snapshot, borrows, *asked, now=NOW)) == ["u", "borrows"]
    assert searched == [*both, "u in b", *both, "v in b", "w in b"]


def test_a_reservation_uses_the_pool_that_leaves_later_ones_their_quota() -> None:
    """In pool a there is room and quota until the first gang starts, in pool b from 50 s on."""
    queues = (Queue(name="x", nominal={"a": 7, "b": 9}),)
    nodes = [node(name, "r", gpus=4, pool="a") for name in ("a0", "a1")]
    nodes.append(node("b0", "r", gpus=2, pool="b"))
    running = [
        replace(runs("on-a0", "a0", left=100, gpus=4, queue="x"), pool="a"),
        replace(runs("on-b0", "b0", left=50, gpus=2, queue="x"), pool="b"),
    ]
    snapshot = cluster(*nodes, queues=queues, pools=("a", "b"), running=running)
    large = gang("large", nodes=6, queue="x", priority=9, pool="a")
    either = gang("either", nodes=2, queue="x", at=1, pools=("a", "b"))
    either = replace(either, max_runtime_seconds=1000.0)
    decisions = run(snapshot, large, either, policy=BACKFILL, now=NOW)
    assert (started(decisions), starts(decisions)) == (
        [],
        {"large": NOW + 100, "either": NOW + 50},
    )


def test_walks_for_one_namespace_end_and_those_for_another_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cycle_session, "MOST_ENDS", 2)
    running = [runs(f"r{index}", f"n{index}", left=50.0 + index) for index in range(3)]
    snapshot = cluster(*racks(count=1, nodes=3), running=running)
    wanted = [
        replace(small(f"g{index}", seconds=10.0, at=float(index), nodes=1 + index), key=key)
        for index, key in enumerate(("a/0", "a/1", "b/0"))
    ]
    given = CycleInput(snapshot=snapshot, pending=tuple(wanted), policy=BACKFILL, now=NOW)
    assert set(starts(decide(given))) == {"a/0", "a/1", "b/0"}
    bounded = decide(replace(given, try_budget=100))
    assert set(starts(bounded)) == {"a/0", "b/0"}


def test_walks_for_many_namespaces_end_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them share the ends of three namespaces."""
    monkeypatch.setattr(cycle_session, "MOST_ENDS", 2)
    running = [runs(f"r{index}", f"n{index}", left=50.0 + index) for index in range(8)]
    snapshot = cluster(*racks(count=1, nodes=8), running=running)
    wanted = [
        replace(small(f"g{index}", seconds=10.0, at=float(index), nodes=2), key=f"ns-{index}/g")
        for index in range(6)
    ]
    given = CycleInput(snapshot=snapshot, pending=tuple(wanted), policy=BACKFILL, now=NOW)
    assert len(starts(decide(given))) == 6
    bounded = starts(decide(replace(given, try_budget=100)))
    assert set(bounded) < {each.key for each in wanted}
    assert set(bounded) >= {"ns-0/g", "ns-1/g"}


@pytest.mark.parametrize(("most", "kept"), [(2, "a"), (4, "ab"), (100, "abc")])
def test_few_reservations_are_made_again_after_a_preemption(
    monkeypatch: pytest.MonkeyPatch, most: int, kept: str
) -> None:
    """The first one is made whatever the number of ends. A gang of pool b preempts another."""
    monkeypatch.setattr(cycle_session, "MOST_ENDS", most)
    running = [
        runs(f"r{index}", f"n{index}", left=50.0 + index, queue="waits") for index in range(3)
    ]
    low = replace(gang("low", gpus=2, priority=-1), pool="b")
    nodes = [node(f"n{index}", gpus=2, pool="a") for index in range(3)]
    running = [replace(each, pool="a") for each in running]
    snapshot = cluster(
        *nodes,
        node("b0", gpus=2, pool="b"),
        running=[*running, replace(admitted(low, "b0"), pool="b")],
        queues=(Queue(name="waits", nominal={"a": 6}), queue("research", nominal={"b": 2})),
        pools=("a", "b"),
    )
    waiting = [
        replace(
            gang(name, nodes=1 + index, gpus=2, priority=9, at=index, pool="a"),
            key=f"{name}/g",
            queue="waits",
            max_runtime_seconds=10.0,
        )
        for index, name in enumerate("abc")
    ]
    given = CycleInput(
        snapshot=snapshot,
        pending=(*waiting, gang("high", gpus=2, priority=5, pool="b")),
        policy=BACKFILL,
        now=NOW,
    )
    for budget, names in ((None, "abc"), (100, kept)):
        made = decide(replace(given, try_budget=budget))
        assert [each.key for each in made.preemptions] == ["training/high"]
        assert set(starts(made)) == {f"{name}/g" for name in names}


def test_the_last_end_is_examined_for_a_costly_gang() -> None:
    """Between the first and the last one, the distance between examined ends grows."""
    # Enough GPUs are free at the 22nd of 43 ends, but a whole rack at the last one.
    nodes = [node(f"n{index}", f"rack-{index % 2}") for index in range(43)]
    running = [runs(f"r{index:02}", f"n{index}", left=10.0 * (index + 1)) for index in range(43)]
    roles = tuple(Role(name=f"r{index}", pods=9, per_pod=pod(0)) for index in range(8))
    big = replace(gang("big", nodes=22, gpus=2), roles=roles, required_level="rack")
    given = CycleInput(
        snapshot=cluster(*nodes, running=running), pending=(big,), policy=BACKFILL, now=NOW
    )
    (reservation,) = decide(given).reservations
    assert reservation.start_at == NOW + 430.0
