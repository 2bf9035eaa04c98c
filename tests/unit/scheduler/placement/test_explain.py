"""What a waiting gang is told: the reason, the numbers, who blocks it, what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import (
    Blocked,
    BlockReason,
    Gang,
    Node,
    Pool,
    Queue,
    Remedy,
    RemedyKind,
    Resources,
    Role,
    Slice,
    Snapshot,
)
from drumline_scheduler.decisions import MAX_MESSAGE_CHARS
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, racks, room, run

WAIT = Remedy(kind=RemedyKind.WAIT_FOR, pool="h100")


def refusal(snapshot: Snapshot, each_gang: Gang) -> Blocked:
    return run(snapshot, each_gang).blocked[0]


def rejected(snapshot: Snapshot, each_gang: Gang, *figures: str) -> BlockReason:
    """Return the reason of a rejection whose message has these figures and names."""
    blocked = refusal(snapshot, each_gang)
    assert not missing(blocked.message, *figures)
    return blocked.reason


def waits(
    blocked: Blocked, reason: BlockReason, *, needed: int, available: int, holder: str
) -> Blocked:
    """Return the rejection of gang a that waits for one other, with the given one's message."""
    return Blocked(
        key="training/a",
        uid="uid-a",
        reason=reason,
        message=blocked.message,
        blockers=(holder,),
        needed=needed,
        available=available,
        remedy=WAIT,
    )


def queue(**changes: Any) -> Snapshot:
    replace_a = replace(Queue(name="research", nominal={"h100": 4, "a100": 0}), **changes)
    return cluster(*racks(), queues=(replace_a,), pools=("h100", "a100", "l40"))


def test_an_unknown_queue() -> None:
    reason = rejected(queue(), gang("a", queue="x"), "queue x", "TrainingQueue")
    assert reason is BlockReason.QUEUE_NOT_FOUND


def test_a_namespace_that_may_not_use_the_queue() -> None:
    blocked = refusal(queue(namespaces=frozenset({"b", "a"})), gang("a"))
    assert blocked.reason is BlockReason.NAMESPACE_NOT_ALLOWED
    assert not missing(blocked.message, "queue research", "namespace training")
    assert missing(blocked.message, "b")
    assert blocked.remedy is None  # no other tenant's name there either
    assert run(queue(namespaces=frozenset({"training"})), gang("a")).placed


def test_a_priority_above_the_queues_highest() -> None:
    reason = rejected(queue(max_priority=3), gang("a", priority=4), "priority 4", "3", "research")
    assert reason is BlockReason.PRIORITY_TOO_HIGH
    assert run(queue(max_priority=3), gang("a", priority=3)).placed


def test_an_unknown_pool() -> None:
    reason = rejected(queue(), gang("a", pool="x"), "pool x", "a100, h100, l40")
    assert reason is BlockReason.POOL_NOT_FOUND


@pytest.mark.parametrize("pool", ["a100", "l40"])
def test_a_pool_in_which_the_queue_has_no_quota(pool: str) -> None:
    reason = rejected(queue(), gang("a", pool=pool), "queue research", f"pool {pool}", "in h100")
    assert reason is BlockReason.NO_QUOTA_IN_POOL


def test_a_queue_without_any_pool() -> None:
    reason = rejected(queue(nominal={}), gang("a"), "queue research", "in no pool")
    assert reason is BlockReason.NO_QUOTA_IN_POOL


def test_an_unknown_level() -> None:
    for levels in ({"required_level": "block"}, {"preferred_level": "block"}):
        reason = rejected(cluster(*racks()), gang("a", **levels), "pool h100", "block", "rack")
        assert reason is BlockReason.TOPOLOGY_LEVEL_UNKNOWN


def test_more_than_the_nominal_quota() -> None:
    blocked = refusal(queue(), gang("a", nodes=5))
    assert (blocked.reason, blocked.needed, blocked.available) == (
        BlockReason.EXCEEDS_QUOTA,
        5,
        4,
    )
    assert not missing(blocked.message, "5 GPUs", "queue research", "4", "pool h100")


def test_quota_that_others_of_the_queue_hold() -> None:
    small, large = admitted(gang("s"), "n0"), admitted(gang("l", nodes=2), "n1", "n1")
    other = admitted(gang("o", nodes=2, queue="b"), "n2", "n2")
    queues = (Queue(name="research", nominal={"h100": 4}), Queue(name="b", nominal={"h100": 2}))
    snapshot = cluster(*racks(), queues=queues, running=[small, large, other])
    blocked = refusal(snapshot, gang("a", nodes=3))
    assert blocked == waits(
        blocked, BlockReason.QUOTA_EXHAUSTED, needed=3, available=1, holder="training/l"
    )
    assert not missing(
        blocked.message, "research", "1 of 4", "pool h100", "needs 3", "training/l (2)"
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
    for asks, figures in (
        (gang("a", nodes=5, gpus=2), ("10 GPUs (5 pods of 2)", "pool h100", "4")),
        (
            gang("a", nodes=3, gpus=2, required_level="rack"),
            ("6 GPUs (3 pods of 2)", "one rack", "rack-0", "2 such pods"),
        ),
        (gang("a", per_pod=pod(1, cpu=128)), ("pool h100", "128 CPU", "n0", "64 CPU")),
    ):
        assert rejected(cluster(*racks()), asks, *figures) is BlockReason.EXCEEDS_CLUSTER
    empty = refusal(cluster(), gang("a"))
    assert empty.reason is BlockReason.POOL_WITHOUT_NODES
    assert not missing(empty.message, "pool h100", "kubectl get gpupool h100")


POOL = Pool(
    name="h100",
    levels=("rack",),
    level_labels=("example.com/rack",),
    selector="gpu=h100,zone=a",
    auxiliary=frozenset({"example.com/hca"}),
    gpu_resource="nvidia.com/gpu",
)


@pytest.mark.parametrize(
    ("nodes", "asks", "reason", "figures"),
    [
        (
            (),
            gang("a"),
            BlockReason.POOL_WITHOUT_NODES,
            ("pool h100", "gpu=h100,zone=a", "kubectl get nodes -L gpu,zone"),
        ),
        (
            (node("n0"), node("n1")),
            gang("a", nodes=2, gpus=2, required_level="rack"),
            BlockReason.LEVEL_LABEL_MISSING,
            ("2 of 2 nodes", "n0, n1", "example.com/rack", "kubectl get nodes -L example.com/rack"),
        ),
        (
            (node("n0", "r"), node("n1", "")),  # the second one could be in the same rack
            gang("a", nodes=2, gpus=2, required_level="rack"),
            BlockReason.LEVEL_LABEL_MISSING,
            ("1 of 2 nodes", "n1"),
        ),
        (
            (node("n0", "r"), node("n1", "")),  # labels would not help
            gang("a", nodes=3, gpus=2, required_level="rack"),
            BlockReason.EXCEEDS_CLUSTER,
            ("6 GPUs", "1 such pod"),
        ),
        (
            (node("n0", "r", gpus=0), node("n1", "r", gpus=0)),
            gang("a"),
            BlockReason.RESOURCE_NOT_OFFERED,
            ("2 of 2 nodes", "nvidia.com/gpu", r".status.allocatable.nvidia\.com/gpu"),
        ),
        (
            (node("n0", "r"), node("n1", "r", gpus=0)),  # with its plugin n1 could hold the other
            gang("a", nodes=2, gpus=2),
            BlockReason.RESOURCE_NOT_OFFERED,
            ("1 of 2 nodes", "n1", "nvidia.com/gpu"),
        ),
        (
            racks(count=1),
            gang("a", per_pod=pod(1, extended=(("example.com/hca", 1),))),
            BlockReason.RESOURCE_NOT_OFFERED,
            ("2 of 2 nodes", "example.com/hca"),
        ),
        (
            racks(count=1),
            gang("a", gpus=16),
            BlockReason.EXCEEDS_CLUSTER,
            ("16 GPUs", "larger than any node", "n0", "2 GPUs"),
        ),
        (
            racks(count=1),
            gang("a", roles=(Role(name="store", pods=1, per_pod=pod(16)),)),
            BlockReason.EXCEEDS_CLUSTER,
            ("16 GPUs", "larger than any node"),
        ),
    ],
)
def test_a_pool_that_cannot_hold_a_job_names_the_mistake(
    nodes: tuple[Node, ...], asks: Gang, reason: BlockReason, figures: tuple[str, ...]
) -> None:
    queues = (Queue(name="research", nominal={"h100": 64}),)
    blocked = refusal(replace(cluster(*nodes, queues=queues), pools=(POOL,)), asks)
    assert blocked.reason is reason
    assert all(figure in blocked.message for figure in figures), blocked.message


def test_a_pool_of_devices_names_their_driver() -> None:
    pool = replace(POOL, device_driver="gpu.example.com")
    snapshot = replace(cluster(node("n0", "r", gpus=0)), pools=(pool,))
    blocked = refusal(snapshot, gang("a"))
    assert blocked.reason is BlockReason.RESOURCE_NOT_OFFERED
    assert not missing(blocked.message, "gpu.example.com", "kubectl get resourceslices")


def test_a_smaller_pod_is_named_with_a_unit() -> None:
    blocked = refusal(cluster(*racks()), gang("a", per_pod=pod(1, cpu=128)))
    assert str(blocked.remedy) == "request at most 64 CPU per pod"


def test_nodes_that_are_out_of_service() -> None:
    n0, n1, n2, n3 = racks()
    nodes = (replace(n0, unschedulable=True), replace(n1, ready=False), n2, n3)
    for asks, figures in (
        (
            gang("a", nodes=3, gpus=2),
            ("6 GPUs (3 pods of 2)", "2 of 4 nodes", "1 cordoned, 1 not ready", "2 such pods"),
        ),
        (
            gang("a", selector={"zone": "x"}, required_level="rack"),
            (
                "4 of 4 nodes",
                "1 cordoned",
                "1 not ready",
                "2 without the required labels",
                "0 such pods",
            ),
        ),
    ):
        assert rejected(cluster(*nodes), asks, *figures) is BlockReason.NODES_UNAVAILABLE


def test_gpus_that_others_hold_name_the_fewest_who_have_to_leave() -> None:
    running = [
        admitted(gang("high", gpus=2, priority=9), "n0"),
        admitted(gang("low", gpus=2), "n1"),
        admitted(gang("mid", gpus=2, priority=5), "n2"),
    ]
    blocked = refusal(cluster(*racks(), running=running), gang("a", nodes=2, gpus=2))
    assert blocked == waits(
        blocked, BlockReason.INSUFFICIENT_GPUS, needed=4, available=2, holder="training/low"
    )
    assert not missing(
        blocked.message, "4 GPUs (2 pods of 2)", "2 of 8", "training/low holds 2 (priority 0)"
    )


def test_a_rack_that_is_half_taken_while_the_pool_has_room() -> None:
    running = [admitted(gang("llama-a", gpus=2), "n0"), admitted(gang("llama-b", gpus=2), "n2")]
    snapshot = cluster(*racks(), running=running)
    blocked = refusal(snapshot, gang("a", nodes=2, gpus=2, required_level="rack"))
    assert blocked == waits(
        blocked, BlockReason.TOPOLOGY_DOES_NOT_FIT, needed=4, available=2, holder="training/llama-a"
    )
    assert not missing(blocked.message, "one rack", "rack-0", "2 of 4", "2 such pods")


def test_the_best_rack_is_one_that_could_hold_the_gang_at_all() -> None:
    small = node("m0", "rack-small")
    running = [admitted(gang("r", nodes=2, gpus=2), "n0", "n1")]
    snapshot = cluster(small, *racks(count=1), running=running)
    blocked = refusal(snapshot, gang("a", nodes=2, gpus=2, required_level="rack"))
    assert (blocked.blockers, blocked.available) == (("training/r",), 0)


def test_free_gpus_in_too_small_pieces() -> None:
    running = [admitted(gang("x"), "n0"), admitted(gang("y"), "n1")]
    snapshot = cluster(*racks(count=1), running=running)
    reason = rejected(snapshot, gang("a", gpus=2), "2 of 4", "0 such pods", "training/x holds 1")
    assert reason is BlockReason.INSUFFICIENT_GPUS


def test_cpu_that_runs_out_before_the_gpus() -> None:
    running = [admitted(gang("hog", per_pod=pod(0, cpu=60)), "n0")]
    blocked = refusal(
        cluster(racks()[0], running=running), gang("a", nodes=2, per_pod=pod(1, cpu=4))
    )
    assert blocked == replace(
        waits(
            blocked,
            BlockReason.INSUFFICIENT_RESOURCES,
            needed=8000,
            available=4000,
            holder="training/hog",
        ),
        resource="cpu_millis",
    )
    assert not missing(blocked.message, "8 CPU", "4 of 64 CPU", "training/hog holds 60 CPU")


def test_pod_slots_and_other_devices_are_named_too() -> None:
    full = replace(racks()[0], allocatable=room(2, pods=2), used=Resources(pods=2))
    asks = gang("a", per_pod=pod(0))
    reason = rejected(cluster(full), asks, "1 pod", "0 of 2 pod slots", "foreign pods hold 2")
    assert reason is BlockReason.INSUFFICIENT_RESOURCES
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
    assert not missing(blocked.message, "training/r holds 2", "foreign pods hold 1")


def test_a_gang_that_started_in_this_cycle_is_a_blocker_like_any_other() -> None:
    decisions = run(cluster(*racks(count=1)), gang("a", nodes=2, gpus=2), gang("b", at=1))
    (blocked,) = decisions.blocked
    assert blocked.blockers == ("training/a",)
    assert not missing(blocked.message, "1 GPU", "0 of 4", "training/a holds 4")


def test_what_is_kept_for_a_nominated_gang_is_named_beside_those_that_leave_for_it() -> None:
    old = admitted(gang("old", gpus=4), "n0", leaving=True)
    other = admitted(gang("other", gpus=4, priority=9), "n1")
    nominee = gang("nom", gpus=4, priority=5, nominated=("n0",), nominated_pool="h100")
    snapshot = cluster(*(node(name, gpus=4) for name in ("n0", "n1")), running=[old, other])
    blocked = run(snapshot, nominee, gang("w", nodes=2, gpus=4, priority=1)).blocked[1]
    assert blocked.blockers == ("training/old", "training/other", "training/nom")
    assert not missing(blocked.message, "training/nom will take 4")


def test_an_explanation_leaves_what_is_kept_for_a_nominated_gang_as_it_was() -> None:
    """Two gangs leave for it. A refused gang would need more than they and it leave free."""
    nodes = [node(name, gpus=gpus) for name, gpus in (("n0", 8), ("n1", 8), ("n2", 4))]
    leaving = [
        admitted(gang("old", gpus=3), "n0", leaving=True),
        admitted(gang("v", gpus=4), "n2", leaving=True),
    ]
    places = ("n0", "n1", "n1", "n2")
    nominee = gang("nom", nodes=4, gpus=4, priority=5, nominated=places, nominated_pool="h100")
    snapshot = cluster(*nodes, running=leaving)
    small = gang("small", gpus=4)
    for refused in ([], [gang("w", gpus=8, priority=1)]):
        decisions = run(snapshot, nominee, *refused, small)
        assert [placed.key for placed in decisions.placed] == [small.key]


def test_a_message_names_three_and_counts_the_rest_and_stays_short() -> None:
    running = [admitted(gang(f"j{i}" + "x" * 240, gpus=2), f"n{i}") for i in range(8)]
    snapshot = cluster(*racks(nodes=4), running=running)
    blocked = refusal(snapshot, gang("a", nodes=8, gpus=2))
    assert len(blocked.blockers) == 8
    assert len(blocked.message) == MAX_MESSAGE_CHARS
    short = [admitted(gang(f"j{i}", gpus=2), f"n{i}") for i in range(5)]
    blocked = refusal(cluster(*racks(nodes=3), running=short), gang("a", nodes=6, gpus=2))
    assert not missing(blocked.message, "training/j0", "training/j1", "training/j2", "2 more")
    assert missing(blocked.message, "training/j3")


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


def test_the_room_of_the_pool_counts_hosts_whose_pods_were_placed_first() -> None:
    """Slices that stand on a host get their pods there before the others are counted."""
    nodes = [node(f"n{i}", f"rack-{i // 2}", f"n{i}", gpus=4) for i in range(4)]
    slices = (Slice(level="host", pods=2),)
    item = gang("a", nodes=4, gpus=1, required_level="rack", slices=slices)
    running = [
        admitted(item, "n0", "gone", "gone", "gone", lost=frozenset({1, 2, 3})),
        admitted(gang("h1", gpus=3), "n1"),
        admitted(gang("h0", gpus=1), "n0"),
    ]
    snapshot = cluster(*nodes, levels=("rack", "host"), running=running)
    (blocked,) = run(snapshot).blocked
    assert "the whole pool has room for 10 such pods" in blocked.message
