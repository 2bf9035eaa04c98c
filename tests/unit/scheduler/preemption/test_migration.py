"""Running gangs move back to the pools that they would rather have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    Decisions,
    Gang,
    MoveBudget,
    MoveReason,
    Policy,
    Queue,
    Snapshot,
)
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, cluster, gang, node, run

BACK = Policy(moves=MoveBudget(), move_back=True, restart_seconds=10.0)
POOLS = ("owned", "rented")
BOTH = Queue(name="research", nominal={"owned": 4, "rented": 4})


def job(name: str = "x", **changes: Any) -> Gang:
    return gang(name, nodes=2, gpus=2, pools=POOLS, **changes)


def elsewhere(item: Gang | None = None, **changes: Any) -> Admitted:
    """A gang in its second pool that lost 50 GPU-seconds if it left now."""
    base = admitted(item or job(), "r0", "r1", pool="rented", gpu_seconds_at_risk=50.0)
    return replace(base, **changes)


def world(
    *running: Admitted, queue: Queue = BOTH, owned: int = 2, more_queues: tuple[Queue, ...] = ()
) -> Snapshot:
    nodes = [node(f"o{i}", "rack-0", pool="owned") for i in range(owned)]
    nodes += [node(f"r{i}", "rack-0", pool="rented") for i in range(2)]
    return cluster(*nodes, pools=POOLS, queues=(queue, *more_queues), running=running)


def moves(snapshot: Snapshot, *pending: Gang, policy: Policy = BACK) -> Decisions:
    decisions = run(snapshot, *pending, policy=policy, now=100.0)
    result = violations(snapshot=snapshot, pending=pending, decisions=decisions, now=100.0)
    assert result == ()
    return decisions


def test_a_gang_moves_to_the_pool_it_names_first_when_there_is_room() -> None:
    (move,) = moves(world(elsewhere())).moves
    assert (move.key, move.pool, move.assignment) == ("training/x", "owned", ("o0", "o1"))
    assert (move.why, move.gpu_seconds_lost) == (MoveReason.BETTER_POOL, 50.0 + 4 * 10.0)


def test_those_who_are_on_their_way_are_paid_from_the_same_budget() -> None:
    goes = elsewhere(leaving=True, nominated={0: "o0", 1: "o1"}, nominated_pool="owned")
    waits = elsewhere(job("y"), assignment=("r2", "r3"))
    nodes = [node(f"{kind}{i}", "rack-0", pool=pool) for kind, pool in zip("or", POOLS, strict=True)
             for i in range(4)]  # fmt: skip
    queue = Queue(name="research", nominal={"owned": 8, "rented": 8})
    snapshot = cluster(*nodes, pools=POOLS, queues=(queue,), running=(goes, waits))

    def moved(*, gangs: int, gpu_seconds: float) -> list[str]:
        budget = MoveBudget(gangs=gangs, gpu_seconds=gpu_seconds)
        return [move.key for move in moves(snapshot, policy=replace(BACK, moves=budget)).moves]

    assert moved(gangs=2, gpu_seconds=180.0) == ["training/y"]
    assert moved(gangs=1, gpu_seconds=180.0) == []
    assert moved(gangs=2, gpu_seconds=179.0) == []


OTHER = admitted(gang("other", gpus=2), "o0", pool="owned")


@pytest.mark.parametrize(
    ("snapshot", "policy"),
    [
        (world(elsewhere(), OTHER), BACK),
        (world(elsewhere(), queue=replace(BOTH, nominal={"owned": 3, "rented": 4})), BACK),
        (world(elsewhere(), queue=replace(BOTH, user_limit={"owned": 3})), BACK),
        (world(elsewhere(preemptible=False)), BACK),
        (world(elsewhere(leaving=True)), BACK),
        (world(elsewhere(admitted_at=90.0), queue=replace(BOTH, min_runtime_seconds=20.0)), BACK),
        (world(elsewhere(replace(job(), pools=("rented", "owned")))), BACK),
        (world(elsewhere(replace(job(), pools=()))), BACK),
        (world(elsewhere()), replace(BACK, move_back=False)),
        (world(elsewhere()), replace(BACK, moves=None)),
        (world(elsewhere()), replace(BACK, moves=MoveBudget(gpu_seconds=89.0))),
        (world(elsewhere()), replace(BACK, moves=MoveBudget(gangs=0))),
    ],
    ids=[
        "no room", "no quota", "the user's cap", "may not be moved", "leaves", "runs not long",
        "is where it wants to be", "wants nothing", "not asked for", "nothing moves", "too dear",
        "none may move",
    ],
)  # fmt: skip
def test_it_stays_where_it_is(snapshot: Snapshot, policy: Policy) -> None:
    assert moves(snapshot, policy=policy).moves == ()


def test_it_does_not_move_in_front_of_one_who_waits() -> None:
    waits = gang("waits", nodes=3, gpus=2, pool="owned", queue="b")
    rest = (Queue(name="b", nominal={"owned": 8}),)
    busy = admitted(gang("busy", gpus=2, queue="b"), "o0", pool="owned")
    snapshot = world(elsewhere(), busy, more_queues=rest, owned=3)
    assert [move.key for move in moves(snapshot).moves] == ["training/x"]
    decisions = moves(snapshot, waits)
    assert [blocked.key for blocked in decisions.blocked] == ["training/waits"]
    assert decisions.moves == ()


def test_who_may_go_first_takes_the_room_and_the_budget() -> None:
    low, high = job("low"), job("high", priority=1)
    held = [
        admitted(low, "r0", "r0", pool="rented"),
        admitted(high, "r1", "r1", pool="rented"),
    ]
    room = [replace(each, gang=replace(each.gang, per_pod=gang("p").per_pod)) for each in held]
    both = moves(world(*room)).moves
    assert [each.key for each in both] == ["training/high", "training/low"]
    item = moves(world(*room), policy=replace(BACK, moves=MoveBudget(gangs=1))).moves
    assert [move.key for move in item] == ["training/high"]


def test_its_new_places_are_kept_until_it_starts_there() -> None:
    snapshot = world(elsewhere())
    (move,) = moves(snapshot).moves
    places = dict(enumerate(move.assignment))
    answer = elsewhere(leaving=True, nominated=places, nominated_pool="owned")
    decisions = run(world(answer), gang("thief", gpus=2, pool="owned"), policy=BACK, now=101.0)
    assert decisions.placed == ()
    assert decisions.moves == ()
    settled = replace(job(), nominated=move.assignment, nominated_pool="owned")
    again = run(world(), settled, gang("thief", gpus=2, pool="owned"), policy=BACK, now=102.0)
    assert {placed.key: placed.pool for placed in again.placed} == {"training/x": "owned"}
