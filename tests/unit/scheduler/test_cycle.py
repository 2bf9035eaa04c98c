"""A cycle as users see it: who starts, in which order, and what the others are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Blocked, BlockReason, Gang, Placed, Queue, Resources
from tests.texts import missing
from tests.unit.scheduler.builders import (
    STRICT,
    admitted,
    after,
    cluster,
    gang,
    node,
    pod,
    racks,
    run,
)


def keys(outcomes: tuple[Placed, ...] | tuple[Blocked, ...]) -> list[str]:
    return [outcome.key.removeprefix("training/") for outcome in outcomes]


def test_a_gang_is_placed_whole_with_its_domain_and_message() -> None:
    decisions = run(cluster(*racks()), gang("a", nodes=2, gpus=2))
    assert decisions.blocked == ()
    (placed,) = decisions.placed
    assert not missing(placed.message, "2 nodes", "rack-0")
    assert replace(placed, message="") == Placed(
        key="training/a",
        uid="uid-a",
        pool="h100",
        assignment=("n0", "n1"),
        level="rack",
        domain=("rack-0",),
    )


def test_two_gangs_that_need_the_whole_cluster_never_hold_half_each() -> None:
    both = (gang("b", nodes=4, gpus=2, at=1), gang("a", nodes=4, gpus=2, at=2))
    snapshot = cluster(*racks())
    decisions = run(snapshot, *both)
    assert keys(decisions.placed) == ["b"]
    assert keys(decisions.blocked) == ["a"]
    again = run(after(snapshot, both, decisions), both[1])
    assert again.placed == ()
    assert again.blocked == decisions.blocked
    assert again.blocked[0].blockers == ("training/b",)


def test_s5_of_two_gangs_of_100_exclusive_pods_exactly_one_runs() -> None:
    nodes = [node(f"n{i:03}", "rack-0", gpus=8) for i in range(100)]
    decisions = run(cluster(*nodes), gang("b", nodes=100, gpus=8), gang("a", nodes=100, gpus=8))
    assert keys(decisions.placed) == ["a"]
    assert sorted(decisions.placed[0].assignment) == [node.name for node in nodes]
    assert decisions.blocked[0].reason is BlockReason.INSUFFICIENT_GPUS


def test_priority_goes_before_age_and_age_before_uid() -> None:
    decisions = run(
        cluster(*racks()),
        gang("old", at=1),
        gang("young", at=2),
        gang("urgent", at=3, priority=5),
        gang("twin-b", at=2.5),
        gang("twin-a", at=2.5),
    )
    assert keys(decisions.placed) == ["urgent", "old", "young", "twin-a", "twin-b"]


def test_s14_many_equal_gangs_that_cannot_fit_do_not_hide_one_behind_them_that_can() -> None:
    waiting = [gang(f"big-{i}", nodes=3, gpus=2, at=i) for i in range(200)]
    small = gang("cpu", at=1000, per_pod=pod(0, cpu=1))
    decisions = run(cluster(*racks(count=1)), *waiting, small)
    assert keys(decisions.placed) == ["cpu"]
    (message,) = {blocked.message for blocked in decisions.blocked}
    assert not missing(message, "6 GPUs (3 pods of 2)", "pool h100", "2")


def test_best_effort_lets_a_small_gang_pass_a_big_one_that_waits() -> None:
    running = admitted(gang("r"), "n0")
    decisions = run(
        cluster(*racks(count=1), running=[running]), gang("big", nodes=2, gpus=2), gang("s", at=1)
    )
    assert keys(decisions.placed) == ["s"]


def test_strict_holds_the_pool_behind_a_gang_that_waits_for_capacity() -> None:
    running = admitted(gang("r"), "n0")
    decisions = run(
        cluster(*racks(count=1), running=[running]),
        gang("big", nodes=2, gpus=2),
        gang("small", at=1),
        policy=STRICT,
    )
    assert decisions.placed == ()
    held = decisions.blocked[1]
    assert (held.reason, held.blockers) == (
        BlockReason.BEHIND_HIGHER_PRIORITY,
        ("training/big",),
    )
    assert not missing(held.message, "training/big", "pool h100", "InsufficientGpus")


def test_strict_holds_only_its_own_queue_behind_a_gang_that_waits_for_quota() -> None:
    queues = (Queue(name="research", nominal={"h100": 2}), Queue(name="b", nominal={"h100": 4}))
    running = admitted(gang("r"), "n0")
    decisions = run(
        cluster(*racks(), queues=queues, running=[running]),
        gang("big", nodes=2),
        gang("small", at=1),
        gang("other", at=2, queue="b"),
        policy=STRICT,
    )
    assert keys(decisions.placed) == ["other"]
    assert [blocked.reason for blocked in decisions.blocked] == [
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.BEHIND_HIGHER_PRIORITY,
    ]


@pytest.mark.parametrize(
    "hopeless",
    [
        gang("hopeless", nodes=9, gpus=2),
        gang("hopeless", nodes=1, gpus=4),
        gang("hopeless", nodes=20_000, gpus=1),
        gang("hopeless", selector={"zone": "x"}),
        gang("hopeless", queue="nobody"),
        gang("hopeless", retry_at=5.0),
    ],
    ids=["cluster", "node", "quota", "selector", "queue", "backoff"],
)
def test_strict_is_not_held_up_by_a_gang_that_no_leaving_helps(hopeless: Gang) -> None:
    decisions = run(cluster(*racks()), hopeless, gang("small", at=1), policy=STRICT)
    assert keys(decisions.placed) == ["small"]


def test_strict_does_not_wait_for_quota_with_a_gang_that_never_fits_the_cluster() -> None:
    queues = (Queue(name="research", nominal={"h100": 16}),)
    running = admitted(gang("r"), "n0")
    decisions = run(
        cluster(*racks(), queues=queues, running=[running]),
        gang("hopeless", nodes=8, gpus=2),
        gang("small", at=1),
        policy=STRICT,
    )
    assert keys(decisions.placed) == ["small"]
    assert decisions.blocked[0].reason is BlockReason.EXCEEDS_CLUSTER


def test_without_a_pool_of_its_own_a_gang_takes_the_first_that_fits() -> None:
    nodes = (node("a0", "r", pool="a"), node("b0", "r", pool="b", gpus=4))
    snapshot = cluster(*nodes, pools=("b", "a"))
    assert [placed.pool for placed in run(snapshot, gang("s", gpus=2)).placed] == ["a"]
    assert [placed.pool for placed in run(snapshot, gang("l", gpus=4)).placed] == ["b"]


def test_of_several_pools_the_refusal_nearest_to_a_start_is_told() -> None:
    running = admitted(gang("r", gpus=4), "b0", pool="b")
    nodes = (node("a0", "r", pool="a"), node("b0", "r", pool="b", gpus=4))
    snapshot = cluster(*nodes, pools=("a", "b"), running=[running])
    blocked = run(snapshot, gang("l", gpus=4)).blocked[0]
    assert (blocked.reason, blocked.blockers) == (BlockReason.INSUFFICIENT_GPUS, ("training/r",))


def test_s18_a_gang_that_backs_off_says_why_and_lets_others_go() -> None:
    rejected = gang("a", retry_at=30.0, retry_cause="pods is forbidden: exceeded quota")
    decisions = run(cluster(*racks()), rejected, gang("b", retry_at=20.0), gang("c"), now=10.0)
    assert keys(decisions.placed) == ["c"]
    assert decisions.retry_at == 20.0
    assert decisions.blocked[0].reason is BlockReason.BACKING_OFF
    assert "pods is forbidden: exceeded quota" in decisions.blocked[0].message
    later = run(cluster(*racks()), rejected, now=30.0)
    assert (keys(later.placed), later.retry_at) == (["a"], None)


def test_s20_terminating_pods_hold_their_capacity() -> None:
    nodes = [replace(rack, used=Resources(gpus=1, pods=1)) for rack in racks(count=1)]
    blocked = run(cluster(*nodes), gang("a", nodes=2, gpus=2)).blocked[0]
    assert (blocked.reason, blocked.blockers) == (
        BlockReason.INSUFFICIENT_GPUS,
        ("foreign pods",),
    )


def test_promised_places_are_taken_before_their_pods_exist() -> None:
    promised = admitted(gang("a", nodes=2, gpus=2), "n0", "n1", reserved=frozenset({0, 1}))
    decisions = run(cluster(*racks(), running=[promised]), gang("b", nodes=2, gpus=2))
    assert decisions.placed[0].assignment == ("n2", "n3")


def test_an_overcommitted_node_is_only_full() -> None:
    over = replace(racks(count=1)[0], used=Resources(gpus=7, cpu_millis=999_000_000, pods=900))
    decisions = run(cluster(over, racks(count=1)[1]), gang("a", gpus=2), gang("b", at=1))
    assert [placed.assignment for placed in decisions.placed] == [("n1",)]
    assert decisions.blocked[0].available == 0


def test_one_uid_for_two_gangs_is_refused() -> None:
    with pytest.raises(ValueError, match="training/a"):
        run(cluster(*racks()), gang("a"), gang("a"))
    running = admitted(gang("a"), "n0")
    with pytest.raises(ValueError, match="is admitted already"):
        run(cluster(*racks(), running=[running]), gang("a"))
