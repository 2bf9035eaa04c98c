"""Who is looked at before whom."""

from __future__ import annotations

from drumline.scheduling import Gang
from drumline.scheduling.ordering import in_turn, turn
from tests.unit.scheduling.builders import after, cluster, gang, queue, racks, run

COHORT = (queue("org"), queue("a", 4, parent="org"), queue("b", 4, parent="org"))


def name(one: Gang) -> str:
    return one.uid.removeprefix("uid-")


def order(*gangs: Gang, levels: dict[str, int] | None = None) -> list[str]:
    known = levels or {}
    found = in_turn(sorted(gangs, key=turn), borrows=lambda one: known.get(name(one), 0))
    return [name(one) for one in found]


def test_where_nobody_borrows_priority_age_and_uid_decide() -> None:
    gangs = [gang("b"), gang("a"), gang("old", at=-1, queue="x"), gang("high", at=9, priority=1)]
    assert order(*gangs) == ["high", "old", "a", "b"]


def test_who_borrows_less_goes_first_but_never_past_its_own_queue() -> None:
    gangs = [
        gang("a1", priority=9, queue="a"),
        gang("a2", priority=8, queue="a"),
        gang("b1", priority=1, queue="b"),
        gang("c1", priority=5, queue="c"),
    ]
    assert order(*gangs, levels={"a1": 2, "c1": 1}) == ["b1", "c1", "a1", "a2"]


def test_a_gang_that_has_to_borrow_by_the_time_of_its_turn_goes_back() -> None:
    started: dict[str, int] = {}
    gangs = [gang("a1", queue="a"), gang("a2", queue="a"), gang("b1", queue="b", at=5)]

    def borrows(one: Gang) -> int:
        return int(name(one) == "a2" and "a1" in started)

    for one in in_turn(sorted(gangs, key=turn), borrows=borrows):
        started[name(one)] = len(started)
    assert started == {"a1": 0, "b1": 1, "a2": 2}


def test_nobody_borrows_in_front_of_one_who_is_entitled_and_would_send_him_away() -> None:
    borrower = gang("borrower", nodes=4, gpus=2, queue="a", priority=9)
    owner = gang("owner", nodes=2, gpus=2, queue="b")
    snapshot = cluster(*racks(), queues=COHORT)
    decisions = run(snapshot, borrower, owner)
    assert [one.key for one in decisions.placed] == ["training/owner"]
    assert decisions.order == ("uid-owner", "uid-borrower")
    settled = after(snapshot, [borrower, owner], decisions)
    assert run(settled, borrower).preemptions == ()
