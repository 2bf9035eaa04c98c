"""Kueue's rules, one situation each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    CycleInput,
    Decisions,
    Gang,
    Policy,
    PreemptionRule,
    Queue,
    Reclaim,
    Snapshot,
    WaitingRule,
    WithinQueue,
)
from drumline_simulator.peers.kueue import decide_as_kueue
from tests.unit.simulator.clusters import a_cluster, a_job

RULE = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)


def a_queue(name: str, gpus: int, **more: Any) -> Queue:
    return Queue(name=name, nominal={"p": gpus}, parent="lab", preemption=RULE, **more)


TWO = (Queue(name="lab", nominal={}), a_queue("q", 8), a_queue("r", 8))


def a_gang(name: str, **more: Any) -> Gang:
    return a_job(name, **more).gang


def held(gang: Gang, *nodes: str, at: float = 0, lost: frozenset[int] = frozenset()) -> Admitted:
    places = frozenset(range(len(nodes)))
    return Admitted(
        gang=gang, pool="p", assignment=nodes, reserved=places, admitted_at=at, lost=lost
    )


def decided(
    *pending: Gang,
    running: tuple[Admitted, ...] = (),
    queues: tuple[Queue, ...] = TWO,
    nodes: int = 2,
    waiting: WaitingRule = WaitingRule.BEST_EFFORT,
    lost_node: str = "",
) -> Decisions:
    cluster = a_cluster(nodes=nodes, queues=queues)
    snapshot = Snapshot(
        nodes=tuple(replace(node, ready=node.name != lost_node) for node in cluster.nodes),
        pools=cluster.pools,
        queues=cluster.queues,
        admitted=running,
    )
    policy = Policy(waiting=waiting)
    cycle = CycleInput(snapshot=snapshot, pending=pending, policy=policy, now=100)
    return decide_as_kueue(cycle)


def placed(decisions: Decisions) -> dict[str, tuple[str, ...]]:
    return {each.uid: each.assignment for each in decisions.placed}


def victims(decisions: Decisions) -> dict[str, list[str]]:
    return {each.uid: [v.uid for v in each.victims] for each in decisions.preemptions}


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    assert placed(decided(a_gang("a", nodes=2))) == {"a": ("n0", "n1")}
    blocker = held(a_gang("b", gpus=1, queue="r"), "n0")
    assert placed(decided(a_gang("a", nodes=2), running=(blocker,))) == {}


def test_pods_go_to_the_fullest_nodes_that_have_room() -> None:
    running = (held(a_gang("b", gpus=2), "n1"),)
    assert placed(decided(a_gang("a", gpus=4), running=running)) == {"a": ("n1",)}


def test_a_queue_borrows_what_its_cohort_leaves_up_to_its_limit() -> None:
    two = a_gang("a", nodes=2)
    assert placed(decided(two)) == {"a": ("n0", "n1")}
    limited = (TWO[0], a_queue("q", 8, borrowing_limit={"p": 4}), TWO[2])
    assert placed(decided(two, queues=limited)) == {}
    alone = (Queue(name="q", nominal={"p": 8}), Queue(name="r", nominal={"p": 8}))
    assert placed(decided(two, queues=alone)) == {}


def test_who_need_not_borrow_comes_first_then_priority_then_age() -> None:
    borrows, nominal = a_gang("a", nodes=2, at=0), a_gang("b", at=1, queue="r")
    assert set(placed(decided(borrows, nominal))) == {"b"}
    old, high = a_gang("a", at=0), a_gang("b", at=1, priority=1)
    only = (Queue(name="q", nominal={"p": 8}),)
    assert set(placed(decided(old, high, queues=only, nodes=1))) == {"b"}
    assert set(placed(decided(old, a_gang("c", at=1), queues=only, nodes=1))) == {"a"}


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [(WaitingRule.BEST_EFFORT, {"small"}), (WaitingRule.STRICT, set[str]())],
)
def test_what_fits_passes_what_does_not_unless_the_queue_is_strict(
    waiting: WaitingRule, expected: set[str]
) -> None:
    big, small = a_gang("big", nodes=3), a_gang("small", at=1, gpus=4)
    assert set(placed(decided(big, small, waiting=waiting))) == expected


def test_a_queue_takes_back_its_nominal_quota_from_one_that_borrows() -> None:
    running = (
        held(a_gang("old", queue="r", priority=9), "n0", at=1),
        held(a_gang("young", queue="r", priority=9), "n1", at=2),
    )
    assert victims(decided(a_gang("a"), running=running)) == {"a": ["young"]}


def test_nobody_is_evicted_for_a_gang_that_would_borrow() -> None:
    running = (held(a_gang("b", queue="r"), "n0"), held(a_gang("c", queue="r"), "n1"))
    assert victims(decided(a_gang("a", nodes=2), running=running)) == {}


def test_within_a_queue_the_lower_priority_leaves() -> None:
    running = (held(a_gang("low"), "n0"), held(a_gang("r1", queue="r"), "n1"))
    assert victims(decided(a_gang("a", priority=1), running=running)) == {"a": ["low"]}
    assert victims(decided(a_gang("a"), running=running)) == {}


def test_victims_that_turn_out_not_to_be_needed_stay() -> None:
    running = (
        held(a_gang("small", gpus=2, queue="r"), "n0", at=3),
        held(a_gang("large", gpus=8, queue="r"), "n1", at=2),
        held(a_gang("rest", gpus=6, queue="r"), "n0", at=1),
    )
    assert victims(decided(a_gang("a"), running=running)) == {"a": ["large"]}


def test_a_lost_node_is_replaced_if_there_is_another() -> None:
    broken = held(a_gang("a", nodes=2), "n0", "n1", lost=frozenset({1}))
    decisions = decided(running=(broken,), nodes=3, lost_node="n1")
    assert placed(decisions) == {"a": ("n0", "n2")}
    assert decisions.placed[0].replaced == (1,)
    assert placed(decided(running=(broken,), nodes=2, lost_node="n1")) == {}


def leaving(gang: Gang, *nodes: str) -> Admitted:
    return replace(held(gang, *nodes), leaving=True)


def waiting_for(gang: Gang, *nodes: str) -> Gang:
    """Return a preemptor whose victims have these nodes."""
    return replace(gang, nominated=nodes, nominated_pool="p")


def test_a_preemptor_gets_the_places_of_its_victims_before_all_others() -> None:
    stale = waiting_for(a_gang("stale", nodes=2, at=0), "n0", "n1")
    back, waits = a_gang("back", at=1, queue="r"), waiting_for(a_gang("waits", at=2), "n1")
    running = (held(a_gang("b", queue="r"), "n0"),)
    assert placed(decided(stale, back, waits, running=running)) == {"waits": ("n1",)}


def test_a_preemptor_keeps_free_places_until_the_others_are_free() -> None:
    waits, other = waiting_for(a_gang("waits", nodes=2), "n0", "n1"), a_gang("b", queue="r")
    running = (leaving(a_gang("c", queue="r"), "n1"),)
    queues = (TWO[0], a_queue("q", 16), a_queue("r", 8))
    assert placed(decided(waits, other, running=running, queues=queues)) == {}
    assert placed(decided(other, running=running, queues=queues)) == {"b": ("n0",)}


def test_nobody_is_evicted_for_what_is_about_to_be_free() -> None:
    running = (held(a_gang("b", queue="r"), "n0"), leaving(a_gang("c", queue="r"), "n1"))
    assert victims(decided(a_gang("a"), running=running)) == {}


def test_what_victims_leave_over_is_not_free_before_they_have_left() -> None:
    running = (
        held(a_gang("old", queue="r"), "n0", at=1),
        held(a_gang("young", queue="r"), "n1", at=2),
    )
    decisions = decided(a_gang("a", gpus=4), a_gang("b", gpus=4, queue="r"), running=running)
    assert (placed(decisions), victims(decisions)) == ({}, {"a": ["young"]})


def test_a_preemptor_whose_node_is_lost_looks_for_other_victims() -> None:
    running = (held(a_gang("b", queue="r"), "n0"), held(a_gang("c", queue="r"), "n2"))
    three = (TWO[0], a_queue("q", 16), a_queue("r", 8))
    waits = waiting_for(a_gang("a"), "n1")
    decisions = decided(waits, running=running, nodes=3, queues=three, lost_node="n1")
    assert victims(decisions) == {"a": ["b"]}


def test_limits_on_lending_are_not_modelled() -> None:
    with pytest.raises(ValueError, match="lending"):
        decided(a_gang("a"), queues=(a_queue("q", 8, lending_limit={"p": 1}),))
