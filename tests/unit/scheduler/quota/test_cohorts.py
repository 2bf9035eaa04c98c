"""The quota tree: what each queue may use, lend and borrow."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_scheduler import Queue
from drumline_scheduler.quota.cohorts import CohortQuota, QueueTree, depths_of, parents_of
from tests.unit.scheduler.builders import queue

TEAM = [queue("org"), queue("a", 8, parent="org"), queue("b", 4, parent="org")]


def balance(*queues: Queue, **usage: int) -> tuple[CohortQuota, QueueTree]:
    tree = QueueTree(queues)
    result = CohortQuota(tree=tree, pool="h100")
    for name, gpus in usage.items():
        result.add(leaf=tree.leaf_of[name], gpus=gpus)
    return result, tree


def room(name: str, *queues: Queue, **usage: int) -> int:
    cohorts, tree = balance(*queues, **usage)
    return cohorts.room(tree.leaf_of[name])


def limited(*, borrow: int | None = None, lend: int | None = None) -> list[Queue]:
    """The team, with limits: `a` borrows at most that much, `b` lends at most that much."""
    org, a, b = TEAM
    if borrow is not None:
        a = replace(a, borrowing_limit={"h100": borrow})
    if lend is not None:
        b = replace(b, lending_limit={"h100": lend})
    return [org, a, b]


@pytest.mark.parametrize(
    ("queues", "usage", "expected"),
    [
        ([queue("a", 8)], {"a": 3}, 5),
        ([queue("a", 8)], {"a": 9}, -1),
        (TEAM, {}, 12),
        (TEAM, {"a": 8}, 4),
        (TEAM, {"a": 8, "b": 1}, 3),
        (TEAM, {"a": 2, "b": 8}, 2),
        (limited(borrow=1), {"a": 8}, 1),
        (limited(borrow=1), {"a": 9}, 0),
        (limited(lend=3), {"a": 8}, 3),
        (limited(lend=3), {"a": 8, "b": 1}, 3),
        (limited(lend=3), {"a": 8, "b": 2}, 2),
        (limited(lend=0), {"a": 8}, 0),
        ([*TEAM, queue("other", 100)], {"a": 12}, 0),
    ],
)
def test_room_for_queue_a(queues: list[Queue], usage: dict[str, int], expected: int) -> None:
    assert room("a", *queues, **usage) == expected


def test_what_is_not_lent_stays_free_for_its_owner() -> None:
    assert room("b", *limited(lend=3), a=11) == 1


def test_borrowing_goes_up_level_by_level_and_each_level_has_its_limit() -> None:
    queues = [
        queue("org"),
        queue("west", parent="org", borrowing_limit={"h100": 3}),
        queue("a", 4, parent="west"),
        queue("b", 4, parent="west"),
        queue("east", 10, parent="org"),
    ]
    assert room("a", *queues) == 11
    assert room("a", *queues, b=4) == 7
    assert room("a", *queues, a=4, b=4, east=9) == 1
    assert room("east", *queues, a=2) == 16


def test_a_cohort_may_hold_quota_and_run_jobs_of_its_own() -> None:
    queues = [queue("org", 6), queue("a", 2, parent="org")]
    assert room("a", *queues) == 8
    assert room("org", *queues, a=5) == 3
    cohorts, tree = balance(*queues, a=5, org=1)
    assert cohorts.borrowed(tree.leaf_of["a"]) == 3
    assert cohorts.borrowed(tree.leaf_of["org"]) == 0


def test_what_others_hold_does_not_change_what_could_ever_be_held() -> None:
    cohorts, tree = balance(*limited(borrow=1, lend=3), a=5, b=4)
    assert [cohorts.most(tree.leaf_of[name]) for name in "ab"] == [9, 12]


def test_at_most_a_queue_holds_what_it_keeps_and_what_its_cohort_may_have_beside() -> None:
    """a keeps 3 of its 4; west has 5 to lend and borrows 3."""
    queues = [
        queue("org"),
        queue("west", parent="org", borrowing_limit={"h100": 3}),
        queue("a", 4, parent="west", lending_limit={"h100": 1}),
        queue("b", 4, parent="west"),
        queue("east", 10, parent="org"),
    ]
    cohorts, tree = balance(*queues)
    assert [cohorts.most(tree.leaf_of[name]) for name in ("a", "b", "east")] == [11, 8, 15]


@pytest.mark.parametrize(
    "queues",
    [
        [queue("a", 8, parent="missing")],
        [queue("a", 8, parent="a")],
        [queue("a", 8, parent="b"), queue("b", 5, parent="a")],
    ],
    ids=["missing", "itself", "circle"],
)
def test_a_queue_without_a_real_parent_stands_alone(queues: list[Queue]) -> None:
    assert room("a", *queues) == 8


def test_a_queue_below_a_circle_still_has_its_parent() -> None:
    queues = [queue("a", 8, parent="b"), queue("b", 5, parent="a"), queue("c", 1, parent="a")]
    assert room("c", *queues) == 9
    assert room("b", *queues) == 5


def test_taking_away_undoes_adding_at_every_level() -> None:
    queues = limited(lend=1)
    cohorts, tree = balance(*queues, a=3, b=4)
    before = list(cohorts.usage)
    cohorts.add(leaf=tree.leaf_of["b"], gpus=7)
    cohorts.add(leaf=tree.leaf_of["b"], gpus=-7)
    assert cohorts.usage == before


@given(st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from("abcdefgx") | st.none()))
def test_parents_that_are_their_own_ancestors_count_as_none(
    parents: dict[str, str | None],
) -> None:
    """The oracle walks up from each queue."""

    def is_own_ancestor(name: str) -> bool:
        above, seen = parents[name], set[str]()
        while above is not None and above in parents and above not in seen:
            seen.add(above)
            above = parents[above]
        return name in seen

    tree = QueueTree([queue(name, parent=parent) for name, parent in parents.items()])
    for name, parent in parents.items():
        leaf = tree.branches[tree.leaf_of[name]]
        above = {tree.branches[branch].name for branch in leaf.path} - {name}
        expected = set[str]()
        at = name
        while (up := parents[at]) in parents and not is_own_ancestor(at):
            assert up is not None
            expected.add(up)
            at = up
        assert above == expected
        assert parent in above or parent not in parents or is_own_ancestor(name)


def test_a_long_line_of_parents_is_walked_once() -> None:
    names = [f"q{i:05}" for i in range(3000)]
    looked_at: list[str] = []

    class Counted(dict[str, Queue]):
        def __getitem__(self, name: str) -> Queue:
            looked_at.append(name)
            return super().__getitem__(name)

    line = {name: queue(name, parent=above) for above, name in pairwise(["", *names])}
    parents = parents_of(Counted(line))
    assert len(looked_at) <= len(names)
    assert depths_of(parents)["q02999"] == 2999
