"""Nominated gangs that could start larger, and what gangs that wait are entitled to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import CycleInput, Gang, Policy, Queue, Snapshot, Toleration, decide
from drumline_scheduler.queueing.deferral import COSTLY
from drumline_scheduler.queueing.search_costs import cost_of
from tests.unit.scheduler.builders import (
    BEST_EFFORT,
    STRICT,
    admitted,
    after,
    cluster,
    gang,
    node,
    queue,
    run,
    still_waiting,
    without,
)

COHORT = (queue("org", 1), queue("a", 2, parent="org"), queue("b", 1, parent="org"))
WIDE = (queue("org", 2), *COHORT[1:])
LARGE = gang("large", nodes=4, queue="a", sizes=(2, 4), priority=1)
RECLAIMS = gang("r", nodes=4, queue="b", sizes=(1, 4))
NOMINATED = replace(RECLAIMS, nominated=("n0",), nominated_pool="h100")


def world(*queues: Queue, gpus: int = 4) -> Snapshot:
    """A node that nobody uses, and one of another pool."""
    nodes = (node("n0", "rack-0", gpus=gpus), node("s0", "rack-0", gpus=4, pool="spot"))
    return cluster(*nodes, queues=queues or COHORT, pools=("h100", "spot"))


def sizes(snapshot: Snapshot, *pending: Gang) -> dict[str, int]:
    """Pods of the gangs that start."""
    placed = run(snapshot, *pending).placed
    return {item.key.removeprefix("training/"): len(item.assignment) for item in placed}


def test_who_reclaims_leaves_its_victim_what_that_is_entitled_to() -> None:
    full = cluster(*world().nodes, queues=COHORT, running=[admitted(LARGE, "n0", "n0", "n0", "n0")])
    first = run(full, RECLAIMS)
    assert [victim.key for victim in first.preemptions[0].victims] == [LARGE.key]
    left = [*still_waiting([RECLAIMS], first), LARGE]
    free = without(after(full, [RECLAIMS], first), "large")
    assert sizes(free, *left) == {"r": 1, "large": 2}


@pytest.mark.parametrize(("residual", "size"), [(False, 1), (True, 4)])
def test_a_victim_that_has_not_left_yet_is_entitled_too_but_not_its_last_pods(
    residual: bool, size: int
) -> None:
    leaving = admitted(gang("v", queue="a"), "n0", leaving=True, is_residual=residual)
    nodes = (node("n0", "rack-0", gpus=1), node("n1", "rack-0", gpus=4))
    assert sizes(cluster(*nodes, queues=WIDE), NOMINATED) == {"r": 4}
    assert sizes(cluster(*nodes, queues=WIDE, running=[leaving]), NOMINATED) == {"r": size}


OTHER_TREE = (*COHORT, queue("c", 2))
IN_SPOT = replace(COHORT[1], nominal={"h100": 2, "spot": 2})


@pytest.mark.parametrize(
    ("waits", "queues"),
    [
        (replace(LARGE, sizes=()), COHORT),
        (replace(LARGE, queue="b"), COHORT),
        (replace(LARGE, queue="c"), OTHER_TREE),
        (replace(LARGE, pool="spot"), (COHORT[0], IN_SPOT, COHORT[2])),
        (gang("cpu", gpus=0, queue="a"), COHORT),
        (LARGE, (COHORT[0], replace(COHORT[1], held=True), COHORT[2])),
    ],
    ids=["has to borrow", "same queue", "other tree", "other pool", "no GPUs", "held queue"],
)
def test_who_could_reclaim_nothing_of_it_does_not_count(
    waits: Gang, queues: tuple[Queue, ...]
) -> None:
    assert sizes(world(*queues), NOMINATED, waits)["r"] == 4


def test_within_its_own_quota_it_starts_as_large_as_it_can() -> None:
    queues = (*COHORT[:2], queue("b", 4, parent="org"))
    assert sizes(world(*queues), NOMINATED, LARGE)["r"] == 4


def test_a_nominated_gang_that_starts_is_not_waited_for() -> None:
    """Both are nominated: what the first one starts with is its own, and not due to it again."""
    first = gang("f", queue="a", priority=9, nominated=("n0",), nominated_pool="h100")
    assert sizes(world(*WIDE, gpus=5), first, NOMINATED) == {"f": 1, "r": 4}


SHARED = (
    Queue(name="org", nominal={}),
    Queue(name="x", nominal={"a": 2, "b": 0}, parent="org"),
    Queue(name="y", nominal={"a": 0, "b": 2}, parent="org"),
)
BOTH = gang("both", gpus=2, queue="x", pools=("a", "b"))
ENTITLED = gang("entitled", gpus=2, at=1.0, queue="y", pools=("b",))


def two_pools(*, a: int, b: int = 2) -> Snapshot:
    """Two pools with a node each; quota of both is shared."""
    nodes = (node("a0", "r", gpus=a, pool="a"), node("b0", "r", gpus=b, pool="b"))
    return cluster(*nodes, queues=SHARED, pools=("a", "b"))


def starts(snapshot: Snapshot, *pending: Gang, policy: Policy = BEST_EFFORT) -> dict[str, str]:
    """Pools of the gangs that start."""
    placed = run(snapshot, *pending, policy=policy).placed
    return {item.key.removeprefix("training/"): item.pool for item in placed}


def test_who_would_borrow_in_its_second_pool_lets_those_start_that_have_quota_there() -> None:
    assert starts(two_pools(a=1), BOTH, ENTITLED) == {"entitled": "b"}
    assert starts(two_pools(a=1, b=1), BOTH, ENTITLED) == {}
    assert starts(two_pools(a=1), BOTH) == {"both": "b"}
    elsewhere = replace(ENTITLED, pools=("a",))
    assert starts(two_pools(a=1), BOTH, elsewhere) == {"both": "b"}


def test_where_it_borrows_nothing_it_keeps_its_turn() -> None:
    assert starts(two_pools(a=2), BOTH, ENTITLED) == {"both": "a", "entitled": "b"}
    first_b = replace(BOTH, pools=("b", "a"))
    assert starts(two_pools(a=2), first_b, ENTITLED) == {"both": "a", "entitled": "b"}
    assert starts(two_pools(a=2), first_b) == {"both": "b"}


def test_what_the_entitled_leave_is_borrowed_in_the_same_cycle() -> None:
    wide = replace(SHARED[2], nominal={"a": 0, "b": 4})
    snapshot = replace(two_pools(a=1, b=4), queues=(*SHARED[:2], wide))
    assert starts(snapshot, BOTH, ENTITLED) == {"entitled": "b", "both": "b"}
    decisions = run(snapshot, BOTH, ENTITLED)
    assert decisions.order == (ENTITLED.uid, BOTH.uid)


def test_a_costly_gang_that_let_others_go_first_is_asked_again_in_the_same_cycle() -> None:
    """Its second search is one more than the budget allows, in every cycle alike."""
    costly = replace(BOTH, tolerations=tuple(Toleration(key=f"k{i}") for i in range(100)))
    cannot = replace(ENTITLED, selector={"no": "such node"})
    budget = cost_of(costly) * 3 // 2
    assert cost_of(costly) > COSTLY
    cycle = CycleInput(
        snapshot=two_pools(a=1),
        pending=(costly, cannot),
        policy=BEST_EFFORT,
        now=0.0,
        try_budget=budget,
    )
    assert [each.key for each in decide(cycle).placed] == [costly.key]


def test_several_are_asked_first_in_the_order_of_their_queues() -> None:
    wide = replace(SHARED[2], nominal={"a": 0, "b": 4})
    snapshot = replace(two_pools(a=1, b=4), queues=(*SHARED[:2], wide))
    more = [gang(f"e{i}", gpus=2, at=9.0 - i, queue="y", pools=("b",)) for i in range(3)]
    assert starts(snapshot, BOTH, *more) == {"e2": "b", "e1": "b"}


def test_nobody_is_passed_under_the_strict_rule() -> None:
    assert starts(two_pools(a=1), BOTH, ENTITLED, policy=STRICT) == {"both": "b"}


def test_a_group_has_one_turn_and_asks_nobody() -> None:
    group = [replace(BOTH, group="g", group_gangs=1)]
    assert starts(two_pools(a=1), *group, ENTITLED) == {"both": "b"}
