"""Who is looked at before whom."""

from __future__ import annotations

from drumline_scheduler import Gang, Queue
from drumline_scheduler.model import order_key
from drumline_scheduler.queueing.order import SchedulingOrder
from drumline_scheduler.quota.cohorts import QueueTree
from drumline_scheduler.quota.quota_ledger import QuotaLedger
from tests.unit.scheduler.builders import admitted, after, cluster, gang, queue, racks, run

COHORT = (queue("org"), queue("a", 4, parent="org"), queue("b", 4, parent="org"))


def never(_: Gang) -> bool:
    return False


def name(each_gang: Gang) -> str:
    return each_gang.uid.removeprefix("uid-")


def order(*gangs: Gang, queues: tuple[Queue, ...] = (), beyond: tuple[str, ...] = ()) -> list[str]:
    """The order in which gangs come forward; those named would take their queue above its quota."""
    book = QuotaLedger(QueueTree(queues or COHORT))
    depth = {
        each_gang.uid: len(book.tree.branches[book.tree.leaf_of[each_gang.queue]].path)
        for each_gang in gangs
    }
    result = SchedulingOrder(
        [[each_gang] for each_gang in sorted(gangs, key=order_key)],
        quota=book,
        borrowing=lambda each_gang: (
            *(False,) * (depth[each_gang.uid] - 1),
            name(each_gang) in beyond,
        ),
        passed=never,
        closed=never,
    )
    return [name(item) for item in result]


def test_where_nobody_borrows_priority_age_and_uid_decide() -> None:
    gangs = [
        gang("b", queue="a"),
        gang("a", queue="a"),
        gang("old", at=-1, queue="b"),
        gang("high", at=9, priority=1, queue="org"),
    ]
    assert order(*gangs) == ["high", "old", "a", "b"]
    assert order(*gangs, queues=(queue("a"), queue("b"), queue("org"))) == ["high", "old", "a", "b"]


def test_who_borrows_less_goes_first_but_never_past_its_own_queue() -> None:
    gangs = [
        gang("a1", priority=9, queue="a"),
        gang("a2", priority=8, queue="a"),
        gang("b1", priority=1, queue="b"),
        gang("c1", priority=5, queue="c"),
    ]
    tree = (*COHORT, queue("c", parent="org"))
    assert order(*gangs, queues=tree, beyond=("a1", "c1")) == ["b1", "a1", "a2", "c1"]


def test_who_is_deeper_in_the_tree_borrows_with_the_same_right() -> None:
    tree = [queue("org", 9), queue("west", parent="org"), queue("w", parent="west")]
    tree.append(queue("east", parent="org"))
    gangs = [gang(f"{name}{at}", queue=name, at=at) for name in ("w", "east") for at in range(3)]
    decisions = run(cluster(*racks(), queues=tuple(tree)), *gangs)
    assert [uid.removeprefix("uid-") for uid in decisions.order] == [
        "east0", "w0", "east1", "w1", "east2", "w2",
    ]  # fmt: skip


def test_members_are_compared_where_they_meet() -> None:
    """`w2` is within its own quota, but its cohort would not be within what it lends."""
    tree = (
        queue("org"),
        queue("west", parent="org"),
        queue("w1", 0, parent="west"),
        queue("w2", 4, parent="west"),
        queue("east", 4, parent="org"),
    )
    held = admitted(gang("held", nodes=4, queue="w1"), "n0", "n0", "n1", "n1")
    gangs = [gang("inside", queue="w2", priority=9), gang("entitled", queue="east")]
    decisions = run(cluster(*racks(), queues=tree, running=[held]), *gangs)
    assert decisions.order == ("uid-entitled", "uid-inside")


def test_a_gang_that_has_to_borrow_by_the_time_of_its_turn_goes_back() -> None:
    gangs = [gang(f"a{i}", nodes=2, queue="a", at=i) for i in range(3)]
    decisions = run(cluster(*racks(), queues=COHORT), *gangs, gang("b1", queue="b", at=5))
    assert decisions.order == ("uid-a0", "uid-a1", "uid-b1", "uid-a2")


def test_nobody_borrows_in_front_of_one_who_is_entitled_and_would_send_him_away() -> None:
    borrower = gang("borrower", nodes=4, gpus=2, queue="a", priority=9)
    owner = gang("owner", nodes=2, gpus=2, queue="b")
    snapshot = cluster(*racks(), queues=COHORT)
    decisions = run(snapshot, borrower, owner)
    assert [item.key for item in decisions.placed] == ["training/owner"]
    assert decisions.order == ("uid-owner", "uid-borrower")
    settled = after(snapshot, [borrower, owner], decisions)
    assert run(settled, borrower).preemptions == ()
