"""What a waiting gang is told: the reason, the numbers, who blocks it, what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.scheduling import (
    MAX_MESSAGE_CHARS,
    Blocked,
    BlockReason,
    Gang,
    Queue,
    Remedy,
    RemedyKind,
    Resources,
    Snapshot,
)
from tests.unit.scheduling.builders import admitted, cluster, gang, node, pod, racks, room, run

WAIT = Remedy(kind=RemedyKind.WAIT_FOR, pool="h100")


def refusal(snapshot: Snapshot, each_gang: Gang) -> Blocked:
    return run(snapshot, each_gang).blocked[0]


def rejection_of(snapshot: Snapshot, each_gang: Gang) -> tuple[BlockReason, str]:
    blocked = refusal(snapshot, each_gang)
    return blocked.reason, blocked.message


def queue(**changes: Any) -> Snapshot:
    replace_a = replace(Queue(name="research", nominal={"h100": 4, "a100": 0}), **changes)
    return cluster(*racks(), queues=(replace_a,), pools=("h100", "a100", "l40"))


def test_an_unknown_queue() -> None:
    assert rejection_of(queue(), gang("a", queue="x")) == (
        BlockReason.QUEUE_NOT_FOUND,
        (
            "queue x does not exist or cannot be read: create or mend that TrainingQueue, or name"
            " another"
        ),
    )


def test_a_namespace_that_may_not_use_the_queue() -> None:
    assert rejection_of(queue(namespaces=frozenset({"b", "a"})), gang("a")) == (
        BlockReason.NAMESPACE_NOT_ALLOWED,
        (
            "queue research is not open to namespace training: use another queue,"
            " or ask the queue's owner to add the namespace"
        ),
    )
    (blocked,) = run(queue(namespaces=frozenset({"b", "a"})), gang("a")).blocked
    assert blocked.remedy is None  # no other tenant's name there either
    assert run(queue(namespaces=frozenset({"training"})), gang("a")).placed


def test_a_priority_above_the_queues_highest() -> None:
    assert rejection_of(queue(max_priority=3), gang("a", priority=4)) == (
        BlockReason.PRIORITY_TOO_HIGH,
        (
            "priority 4 is above 3, the highest that queue research allows:"
            " choose a lower priority class"
        ),
    )
    assert run(queue(max_priority=3), gang("a", priority=3)).placed


def test_an_unknown_pool() -> None:
    assert rejection_of(queue(), gang("a", pool="x")) == (
        BlockReason.POOL_NOT_FOUND,
        "pool x does not exist; pools: a100, h100, l40",
    )


@pytest.mark.parametrize("pool", ["a100", "l40"])
def test_a_pool_in_which_the_queue_has_no_quota(pool: str) -> None:
    assert rejection_of(queue(), gang("a", pool=pool)) == (
        BlockReason.NO_QUOTA_IN_POOL,
        f"queue research has no quota in pool {pool}; it has quota in h100",
    )


def test_a_queue_without_any_pool() -> None:
    assert rejection_of(queue(nominal={}), gang("a")) == (
        BlockReason.NO_QUOTA_IN_POOL,
        "queue research has no quota in any existing pool; it has quota in no pool",
    )


def test_an_unknown_level() -> None:
    expected = (
        BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
        "pool h100 has no topology level block; its levels: rack",
    )
    assert rejection_of(cluster(*racks()), gang("a", required_level="block")) == expected
    assert rejection_of(cluster(*racks()), gang("a", preferred_level="block")) == expected


def test_more_than_the_nominal_quota() -> None:
    blocked = refusal(queue(), gang("a", nodes=5))
    assert (blocked.reason, blocked.needed, blocked.available) == (
        BlockReason.EXCEEDS_QUOTA,
        5,
        4,
    )
    assert blocked.message == (
        "needs 5 GPUs; queue research has a nominal quota of 4 in pool h100:"
        " ask for less or raise the quota"
    )


def test_quota_that_others_of_the_queue_hold() -> None:
    small, large = admitted(gang("s"), "n0"), admitted(gang("l", nodes=2), "n1", "n1")
    other = admitted(gang("o", nodes=2, queue="b"), "n2", "n2")
    queues = (Queue(name="research", nominal={"h100": 4}), Queue(name="b", nominal={"h100": 2}))
    snapshot = cluster(*racks(), queues=queues, running=[small, large, other])
    assert refusal(snapshot, gang("a", nodes=3)) == Blocked(
        key="training/a",
        uid="uid-a",
        reason=BlockReason.QUOTA_EXHAUSTED,
        message="queue research has 1 of 4 nominal GPUs free in pool h100; needs 3;"
        " held by training/l (2)",
        blockers=("training/l",),
        needed=3,
        available=1,
        remedy=Remedy(kind=RemedyKind.WAIT_FOR, pool="h100"),
    )
    assert refusal(snapshot, gang("a", nodes=4)).blockers == ("training/l", "training/s")


def test_a_gang_that_starts_uses_up_quota_for_those_behind_it_in_the_same_cycle() -> None:
    queues = (Queue(name="research", nominal={"h100": 3}),)
    decisions = run(cluster(*racks(), queues=queues), gang("a", nodes=2), gang("b", nodes=2, at=1))
    assert [item.key for item in decisions.placed] == ["training/a"]
    assert decisions.blocked[0].blockers == ("training/a",)


def test_nobody_is_named_whose_leaving_would_turn_out_needless() -> None:
    low, high = admitted(gang("low"), "n0"), admitted(gang("high", gpus=2, priority=1), "n1")
    n0, n1 = racks(count=1)
    queues = (Queue(name="research", nominal={"h100": 3}),)
    snapshot = cluster(n0, n1, queues=queues, running=[low, high])
    assert refusal(snapshot, gang("a", gpus=2)).blockers == ("training/high",)
    foreign = replace(n0, used=Resources(gpus=1, pods=1))
    snapshot = cluster(foreign, n1, running=[low, high])
    assert refusal(snapshot, gang("a", gpus=2)).blockers == ("training/high",)


def test_quota_that_was_lowered_under_running_jobs_is_never_negative() -> None:
    running = admitted(gang("r", nodes=4), "n0", "n0", "n1", "n1")
    queues = (Queue(name="research", nominal={"h100": 2}),)
    blocked = refusal(cluster(*racks(), queues=queues, running=[running]), gang("a"))
    assert (blocked.reason, blocked.available) == (BlockReason.QUOTA_EXHAUSTED, 0)
    assert run(
        cluster(*racks(), queues=queues, running=[running]), gang("c", per_pod=pod(0))
    ).placed


def test_more_than_the_empty_pool_holds() -> None:
    assert rejection_of(cluster(*racks()), gang("a", nodes=5, gpus=2)) == (
        BlockReason.EXCEEDS_CLUSTER,
        (
            "needs 10 GPUs (5 pods of 2) in pool h100; it has room for 4 such pods even when empty:"
            " ask for less or add nodes"
        ),
    )
    assert rejection_of(cluster(*racks()), gang("a", nodes=3, gpus=2, required_level="rack")) == (
        BlockReason.EXCEEDS_CLUSTER,
        (
            "needs 6 GPUs (3 pods of 2) in one rack; the largest, rack-0, has room for 2 such pods"
            " even when empty: ask for less or add nodes"
        ),
    )
    assert rejection_of(cluster(*racks()), gang("a", per_pod=pod(1, cpu=128))) == (
        BlockReason.EXCEEDS_CLUSTER,
        (
            "needs 1 GPU in pool h100; no node there can hold such a pod (1 GPU, 128 CPU),"
            " even when empty: ask for less or add nodes"
        ),
    )
    assert refusal(cluster(), gang("a")).reason is BlockReason.EXCEEDS_CLUSTER


def test_nodes_that_are_out_of_service() -> None:
    n0, n1, n2, n3 = racks()
    nodes = (replace(n0, unschedulable=True), replace(n1, ready=False), n2, n3)
    assert rejection_of(cluster(*nodes), gang("a", nodes=3, gpus=2)) == (
        BlockReason.NODES_UNAVAILABLE,
        (
            "needs 6 GPUs (3 pods of 2) in pool h100; 2 of 4 nodes cannot be used (1 cordoned,"
            " 1 not ready); the rest has room for 2 such pods when empty"
        ),
    )
    assert rejection_of(
        cluster(*nodes), gang("a", selector={"zone": "x"}, required_level="rack")
    ) == (
        BlockReason.NODES_UNAVAILABLE,
        (
            "needs 1 GPU in one rack; 4 of 4 nodes cannot be used (1 cordoned, 1 not ready,"
            " 2 without the labels asked for); the best rack has room for 0 such pods when empty"
        ),
    )


def test_gpus_that_others_hold_name_the_fewest_who_have_to_leave() -> None:
    running = [
        admitted(gang("high", gpus=2, priority=9), "n0"),
        admitted(gang("low", gpus=2), "n1"),
        admitted(gang("mid", gpus=2, priority=5), "n2"),
    ]
    blocked = refusal(cluster(*racks(), running=running), gang("a", nodes=2, gpus=2))
    assert blocked == Blocked(
        key="training/a",
        uid="uid-a",
        reason=BlockReason.INSUFFICIENT_GPUS,
        message="needs 4 GPUs (2 pods of 2) in pool h100; 2 of 8 free;"
        " training/low holds 2 (priority 0)",
        blockers=("training/low",),
        needed=4,
        available=2,
        remedy=WAIT,
    )


def test_a_rack_that_is_half_taken_while_the_pool_has_room() -> None:
    running = [admitted(gang("llama-a", gpus=2), "n0"), admitted(gang("llama-b", gpus=2), "n2")]
    snapshot = cluster(*racks(), running=running)
    assert refusal(snapshot, gang("a", nodes=2, gpus=2, required_level="rack")) == Blocked(
        key="training/a",
        uid="uid-a",
        reason=BlockReason.TOPOLOGY_DOES_NOT_FIT,
        message="needs 4 GPUs (2 pods of 2) in one rack; the best rack, rack-0, has 2 of 4 free"
        " (the whole pool has room for 2 such pods); training/llama-a holds 2 (priority 0)",
        blockers=("training/llama-a",),
        needed=4,
        available=2,
        remedy=WAIT,
    )


def test_the_best_rack_is_one_that_could_hold_the_gang_at_all() -> None:
    small = node("m0", "rack-small")
    running = [admitted(gang("r", nodes=2, gpus=2), "n0", "n1")]
    snapshot = cluster(small, *racks(count=1), running=running)
    blocked = refusal(snapshot, gang("a", nodes=2, gpus=2, required_level="rack"))
    assert (blocked.blockers, blocked.available) == (("training/r",), 0)


def test_free_gpus_in_too_small_pieces() -> None:
    running = [admitted(gang("x"), "n0"), admitted(gang("y"), "n1")]
    assert rejection_of(cluster(*racks(count=1), running=running), gang("a", gpus=2)) == (
        BlockReason.INSUFFICIENT_GPUS,
        (
            "needs 2 GPUs in pool h100; 2 of 4 free but room for 0 such pods;"
            " training/x holds 1 (priority 0)"
        ),
    )


def test_cpu_that_runs_out_before_the_gpus() -> None:
    running = [admitted(gang("hog", per_pod=pod(0, cpu=60)), "n0")]
    blocked = refusal(
        cluster(racks()[0], running=running), gang("a", nodes=2, per_pod=pod(1, cpu=4))
    )
    assert blocked == Blocked(
        key="training/a",
        uid="uid-a",
        reason=BlockReason.INSUFFICIENT_RESOURCES,
        message="needs 2 GPUs (2 pods of 1) in pool h100 and 8 CPU; 4 of 64 CPU free;"
        " training/hog holds 60 CPU (priority 0)",
        blockers=("training/hog",),
        resource="cpu_millis",
        needed=8000,
        available=4000,
        remedy=WAIT,
    )


def test_pod_slots_and_other_devices_are_named_too() -> None:
    full = replace(racks()[0], allocatable=room(2, pods=2), used=Resources(pods=2))
    assert rejection_of(cluster(full), gang("a", per_pod=pod(0))) == (
        BlockReason.INSUFFICIENT_RESOURCES,
        "needs 1 pod in pool h100; 0 of 2 pod slots free; foreign pods hold 2 pod slots",
    )
    hca = (("rdma/hca", 1),)
    taken = replace(racks()[0], allocatable=room(2, extended=hca), used=Resources(extended=hca))
    blocked = refusal(cluster(taken), gang("a", per_pod=pod(1, extended=hca)))
    assert (blocked.reason, blocked.resource) == (BlockReason.INSUFFICIENT_RESOURCES, "rdma/hca")


def test_foreign_pods_are_named_beside_the_jobs_that_have_to_leave() -> None:
    n0, n1 = racks(count=1)
    foreign = replace(n0, used=Resources(gpus=1, pods=1))
    running = [admitted(gang("r", gpus=2), "n1")]
    blocked = refusal(cluster(foreign, n1, running=running), gang("a", nodes=2, gpus=2))
    assert blocked.blockers == ("training/r", "foreign pods")
    assert blocked.message.endswith("training/r holds 2 (priority 0), foreign pods hold 1")


def test_a_gang_that_started_in_this_cycle_is_a_blocker_like_any_other() -> None:
    decisions = run(cluster(*racks(count=1)), gang("a", nodes=2, gpus=2), gang("b", at=1))
    assert decisions.blocked[0].message == (
        "needs 1 GPU in pool h100; 0 of 4 free; training/a holds 4 (priority 0)"
    )


def test_a_message_names_three_and_counts_the_rest_and_stays_short() -> None:
    running = [admitted(gang(f"j{i}" + "x" * 240, gpus=2), f"n{i}") for i in range(8)]
    snapshot = cluster(*racks(nodes=4), running=running)
    blocked = refusal(snapshot, gang("a", nodes=8, gpus=2))
    assert len(blocked.blockers) == 8
    assert len(blocked.message) == MAX_MESSAGE_CHARS
    short = [admitted(gang(f"j{i}", gpus=2), f"n{i}") for i in range(5)]
    blocked = refusal(cluster(*racks(nodes=3), running=short), gang("a", nodes=6, gpus=2))
    assert blocked.message.endswith(
        "training/j0 holds 2 (priority 0), training/j1 holds 2 (priority 0),"
        " training/j2 holds 2 (priority 0) and 2 more"
    )


def test_s19_a_gang_that_is_one_gpu_short_hears_so_exactly() -> None:
    nodes = [node(f"n{i:03}", "rack-0", gpus=8) for i in range(100)]
    running = [admitted(gang("one"), "n042")]
    blocked = refusal(cluster(*nodes, running=running), gang("a", nodes=100, gpus=8))
    assert (blocked.reason, blocked.needed, blocked.available) == (
        BlockReason.INSUFFICIENT_GPUS,
        800,
        799,
    )
    assert blocked.blockers == ("training/one",)


def test_the_same_situation_gives_the_same_words_at_any_time() -> None:
    snapshot = cluster(*racks(count=1), running=[admitted(gang("r"), "n0")])
    gang_a = gang("a", nodes=2, gpus=2)
    assert run(snapshot, gang_a, now=1.0) == run(snapshot, gang_a, now=1e9)
