"""What waits until its nodes are closed to kube-scheduler, and how long they stay closed."""

from __future__ import annotations

from drumline_scheduler.decisions import Decisions, Placed, Preemption, Resized
from drumline_scheduler.guarded_nodes import (
    FORGET_SECONDS,
    GIVE_UP_SECONDS,
    SETTLE_SECONDS,
    NodeGuard,
    TaintChanges,
    hold_back,
)

POOLS = frozenset({"shared"})
NOTHING = TaintChanges()


def placed(uid: str, *nodes: str, pool: str = "shared", replaced: tuple[int, ...] = ()) -> Placed:
    return Placed(key=f"ns/{uid}", uid=uid, pool=pool, assignment=nodes, replaced=replaced)


def test_what_counts_on_open_nodes_of_guarded_pools_waits() -> None:
    preemption = Preemption(key="ns/p", uid="p", pool="shared", assignment=("n3",), victims=())
    grows = Resized(key="ns/g", uid="g", pool="shared", kept=(0,), added=("n4",))
    shrinks = Resized(key="ns/s", uid="s", pool="shared", kept=(0,), added=())
    ready, elsewhere = placed("a", "n1"), placed("b", "m1", pool="own")
    guarded = hold_back(
        Decisions(
            placed=(ready, elsewhere, placed("c", "n1", "n2")),
            preemptions=(preemption,),
            resized=(grows, shrinks),
        ),
        pools=POOLS,
        secured={"n1"},
        groups={},
    )
    assert guarded.decisions == Decisions(placed=(ready, elsewhere), resized=(shrinks,))
    assert guarded.nodes == {"n1", "n2", "n3", "n4"}


def test_what_counts_on_closed_nodes_is_carried_out() -> None:
    decisions = Decisions(placed=(placed("a", "n1"),))
    guarded = hold_back(decisions, pools=POOLS, secured={"n1", "n2"}, groups={})
    assert guarded.decisions == decisions


def test_places_that_a_broken_gang_keeps_need_no_promise() -> None:
    decisions = Decisions(placed=(placed("a", "kept", "new", replaced=(1,)),))
    guarded = hold_back(decisions, pools=POOLS, secured={"new"}, groups={})
    assert (guarded.decisions, guarded.nodes) == (decisions, {"new"})


def test_a_group_waits_for_all_its_gangs_nodes() -> None:
    decisions = Decisions(placed=(placed("a", "n1"), placed("b", "n2"), placed("c", "n1")))
    groups = {"a": "duo", "b": "duo"}
    guarded = hold_back(decisions, pools=POOLS, secured={"n1"}, groups=groups)
    assert [each.uid for each in guarded.decisions.placed] == ["c"]


def test_a_node_is_secured_once_its_taint_has_stood() -> None:
    guard = NodeGuard()
    guard.want(["n1"], now=0.0)
    assert guard.changes(tainted=(), promised=(), now=0.0) == TaintChanges(add=frozenset({"n1"}))
    assert guard.changes(tainted={"n1"}, promised=(), now=0.5) == NOTHING
    assert not guard.secured(now=0.4 + SETTLE_SECONDS)
    assert guard.secured(now=0.5 + SETTLE_SECONDS) == {"n1"}


def test_a_taint_that_somebody_lifted_is_added_again_and_has_to_settle() -> None:
    guard = NodeGuard()
    for now, tainted in ((0.0, {"n1"}), (2.0, set[str]()), (2.5, {"n1"})):
        guard.changes(tainted=tainted, promised={"n1"}, now=now)
    assert not guard.secured(now=2.4 + SETTLE_SECONDS)


def test_a_taint_is_lifted_when_nothing_is_promised_there_for_a_while() -> None:
    guard = NodeGuard()
    guard.changes(tainted={"n1"}, promised={"n1"}, now=0.0)
    lift = TaintChanges(lift=frozenset({"n1"}))
    assert guard.changes(tainted={"n1"}, promised=(), now=5.0) == NOTHING
    assert guard.changes(tainted={"n1"}, promised={"n1"}, now=5.9) == NOTHING  # promised again
    assert guard.changes(tainted={"n1"}, promised=(), now=6.0) == NOTHING
    assert guard.secured(now=6.9) == {"n1"}
    assert guard.changes(tainted={"n1"}, promised=(), now=6.0 + SETTLE_SECONDS) == lift
    assert not guard.secured(now=6.0 + SETTLE_SECONDS)  # though the watch may still show it


def test_pauses_of_a_node_that_is_refused_double_up_to_an_hour() -> None:
    guard, now, pauses = NodeGuard(), 0.0, list[float]()
    guard.want(["n1"], now=now)
    guard.refuse(["n1"], now=now)
    assert guard.not_guardable(now=now) == frozenset()  # it may be allowed in a second
    now += GIVE_UP_SECONDS
    guard.want(["n1"], now=now)
    for _ in range(9):
        guard.refuse(["n1"], now=now)
        before = now
        while not guard.changes(tainted=(), promised=(), now=now).add:
            now += 30.0
            guard.want(["n1"], now=now)
            assert guard.secured(now=now) == {"n1"}
        pauses.append(now - before)
    assert pauses == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]


def test_a_node_without_an_answer_is_waited_for_each_time() -> None:
    guard = NodeGuard()
    guard.want(["n1"], now=0.0)
    assert guard.secured(now=GIVE_UP_SECONDS) == {"n1"}
    later = GIVE_UP_SECONDS + FORGET_SECONDS
    guard.changes(tainted=(), promised=(), now=later)
    guard.want(["n1"], now=later)
    assert not guard.secured(now=later)


def test_a_node_that_a_decision_names_meanwhile_is_kept() -> None:
    guard = NodeGuard()
    guard.changes(tainted={"n1"}, promised=(), now=0.0)
    guard.want(["n1"], now=SETTLE_SECONDS)
    assert guard.changes(tainted={"n1"}, promised=(), now=SETTLE_SECONDS) == NOTHING
    later = SETTLE_SECONDS + FORGET_SECONDS
    assert guard.changes(tainted={"n1"}, promised=(), now=later) == NOTHING
    assert guard.changes(tainted={"n1"}, promised=(), now=later + SETTLE_SECONDS).lift == {"n1"}
    guard.changes(tainted=(), promised=(), now=later + 2)
    assert guard.is_idle
