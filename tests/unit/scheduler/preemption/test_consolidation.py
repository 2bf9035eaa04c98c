"""Room for a waiting gang by moves: nobody is sent away, and nobody moves in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import (
    CycleInput,
    Decisions,
    Gang,
    MoveBudget,
    Policy,
    Snapshot,
    VictimReason,
    decide,
)
from drumline_scheduler.queueing.deferral import TRY_BUDGET
from tests.property.invariants import violations
from tests.unit.scheduler.builders import (
    admitted,
    after,
    cluster,
    gang,
    queue,
    racks,
    run,
    still_waiting,
    ticking,
    without,
)

MOVES = Policy(moves=MoveBudget(gangs=8, gpu_seconds=3600.0))
WHOLE = gang("x", gpus=4)


def scattered(**risks: float) -> Snapshot:
    """Three nodes of 4 GPUs, each with a gang of 2; `risks` are their GPU-seconds at risk."""
    running = [
        admitted(gang(name, gpus=2), f"n{i}", gpu_seconds_at_risk=risks.get(name, 0.0))
        for i, name in enumerate("abc")
    ]
    return cluster(*racks(count=1, nodes=3, gpus=4), running=running)


def decided(snapshot: Snapshot, *pending: Gang, policy: Policy = MOVES) -> Decisions:
    decisions = run(snapshot, *pending, policy=policy)
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    return decisions


def moves(decisions: Decisions) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (victim.key, victim.moves_to)
        for preemption in decisions.preemptions
        for victim in preemption.victims
        if victim.why is VictimReason.MOVED
    ]


def test_the_gang_that_loses_least_moves_to_the_rest_of_another_node() -> None:
    decisions = decided(scattered(a=5, b=1, c=9), WHOLE)
    assert moves(decisions) == [("training/b", ("n0",))]
    assert decisions.preemptions[0].assignment == ("n1",)


def test_a_move_of_parts_costs_what_they_are_of_a_gpu() -> None:
    """Two parts for a minute: 120 GPU-seconds if they are GPUs, 60 if two are one."""
    narrow, whole = Policy(moves=MoveBudget(gpu_seconds=119.0)), scattered()
    assert moves(decided(whole, WHOLE, policy=narrow)) == []
    halves = tuple(replace(pool, parts_per_gpu=2) for pool in whole.pools)
    assert moves(decided(replace(whole, pools=halves), WHOLE, policy=narrow))


def test_the_whole_story_ends_with_everybody_in_place() -> None:
    snapshot = scattered(a=5, b=1, c=9)
    first = decided(snapshot, WHOLE)
    (mover,) = first.preemptions[0].victims
    answer = after(snapshot, [WHOLE], first)
    answer = replace(
        answer,
        admitted=tuple(
            replace(held, nominated=dict(enumerate(mover.moves_to)), nominated_pool="h100")
            if held.leaving
            else held
            for held in answer.admitted
        ),
    )
    left = still_waiting([WHOLE], first)
    greedy = gang("greedy", gpus=2, priority=9)
    waits = decided(answer, *left, greedy)
    assert [placed.key for placed in waits.placed] == ["training/greedy"]
    assert waits.placed[0].assignment == ("n2",)
    moved = replace(gang("b", gpus=2), nominated=mover.moves_to, nominated_pool="h100")
    done = decided(without(answer, "b"), *left, moved)
    assert {placed.key: placed.assignment for placed in done.placed} == {
        "training/x": ("n1",),
        "training/b": ("n0",),
    }


@pytest.mark.parametrize(
    ("snapshot", "item", "policy"),
    [
        (scattered(), WHOLE, Policy()),
        (scattered(), WHOLE, Policy(moves=MoveBudget(gangs=0))),
        (scattered(), WHOLE, Policy(moves=MoveBudget(gpu_seconds=119.0))),
        (scattered(), replace(WHOLE, nodes=2), MOVES),
        (replace(scattered(), queues=(queue("research", 9),)), WHOLE, MOVES),
        (
            replace(
                scattered(),
                admitted=tuple(replace(h, preemptible=False) for h in scattered().admitted),
            ),
            WHOLE,
            MOVES,
        ),
        (
            replace(scattered(), queues=(queue("research", 99, min_runtime_seconds=1.0),)),
            WHOLE,
            MOVES,
        ),
    ],
    ids=["off", "no gangs", "too dear", "no room", "no quota", "not preemptible", "too young"],
)
def test_nobody_moves(snapshot: Snapshot, item: Gang, policy: Policy) -> None:
    assert moves(decided(snapshot, item, policy=policy)) == []


def test_a_move_comes_before_sending_anybody_away() -> None:
    snapshot = replace(scattered(), queues=(queue("research", 99),))
    (preemption,) = decided(snapshot, replace(WHOLE, priority=5)).preemptions
    assert [victim.why for victim in preemption.victims] == [VictimReason.MOVED]


def test_a_gang_stays_in_its_required_rack_or_does_not_move() -> None:
    """The only other room is in the other rack."""
    nodes = racks(count=2, nodes=2, gpus=4)
    tied = gang("tied", nodes=2, gpus=2, required_level="rack")
    running = [
        admitted(tied, "n0", "n1"),
        admitted(gang("f", gpus=4), "n2"),
        admitted(gang("g", gpus=1), "n3", preemptible=False),
    ]
    snapshot = cluster(*nodes, running=running)
    assert moves(decided(snapshot, WHOLE)) == [("training/tied", ("n1", "n1"))]


def test_many_gangs_are_served_by_moves_in_one_cycle() -> None:
    """8 one-GPU jobs on each of 20 nodes, 5 of them gone: a pod of 6 GPUs fits on no node."""
    nodes = racks(count=1, nodes=20, gpus=8)
    running = [admitted(gang(f"r{i:02}-{k}"), f"n{i}") for i in range(20) for k in range(3)]
    wide = [gang(f"w{i}", nodes=4, gpus=6, at=float(i)) for i in range(4)]
    generous = Policy(moves=MoveBudget(gangs=100, gpu_seconds=1e6))
    decisions = decided(cluster(*nodes, running=running), *wide, policy=generous)
    assert len(decisions.preemptions) == 4
    assert len(moves(decisions)) == 16


def test_no_second_mover_is_searched_once_the_time_is_over() -> None:
    """The one that loses least may only run where it is."""
    snapshot = scattered(a=1, b=5, c=9)
    tied, *free = snapshot.admitted
    tied = replace(tied, gang=replace(tied.gang, selector={"kind": "x"}))
    first, *rest = snapshot.nodes
    snapshot = replace(
        snapshot, admitted=(tied, *free), nodes=(replace(first, labels={"kind": "x"}), *rest)
    )
    given = CycleInput(
        snapshot=snapshot,
        pending=(WHOLE,),
        policy=MOVES,
        now=0.0,
        try_budget=TRY_BUDGET,
        put_off=(WHOLE.uid,),
    )
    assert moves(decide(given, work=ticking(1000))) == [("training/b", ("n0",))]
    made = decide(given, work=ticking(0))
    assert moves(made) == []
    assert decide(replace(given, late_from=made.late_at)) == made
