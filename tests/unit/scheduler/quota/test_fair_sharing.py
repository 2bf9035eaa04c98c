"""What a queue has and has had: dominant shares, their decay, and what a weight makes of them."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from drumline_scheduler import Node, Policy, Pool, Queue, Resources, Role, Snapshot
from drumline_scheduler.model import Ordering
from drumline_scheduler.quota.fair_sharing import decay, dominant_shares
from drumline_scheduler.quota.quota_ledger import QuotaLedger, ledger_of
from tests.unit.scheduler.builders import admitted, gang, pod

FAIR = Policy(order=Ordering.FAIR_SHARE, history_weight=1.0)


def snapshot(*queues: Queue, **changes: object) -> Snapshot:
    """Two pools of 8 and 4 GPUs, 100 CPU and no memory that anybody counted."""
    nodes = (
        Node(name="n0", pool="h100", allocatable=Resources(gpus=8, cpu_millis=60_000, pods=99)),
        Node(name="n1", pool="spot", allocatable=Resources(gpus=4, cpu_millis=40_000, pods=99)),
        Node(name="n2", pool="gone", allocatable=Resources(gpus=99, cpu_millis=99, pods=99)),
    )
    pools = (Pool(name="h100"), Pool(name="spot"))
    base = Snapshot(nodes=nodes, pools=pools, queues=queues)
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


def book(
    *queues: Queue, policy: Policy = FAIR, history: dict[str, float] | None = None
) -> QuotaLedger:
    return ledger_of(snapshot=snapshot(*queues, history=history or {}), policy=policy)


def share(quota_ledger: QuotaLedger, name: str) -> float:
    assert quota_ledger.shares is not None
    return quota_ledger.shares.share(quota_ledger.tree.leaf_of[name])


A, B = Queue(name="a", nominal={}), Queue(name="b", nominal={}, weight=2.0)


def test_the_dominant_share_is_the_largest_part_of_any_one_thing() -> None:
    result = book(A, B)
    result.hold(gang=gang("x", nodes=3, gpus=1, queue="a"), pool="h100", size=3)
    assert share(result, "a") == 0.25
    result.hold(gang=gang("y", nodes=3, gpus=1, queue="a"), pool="spot", size=3)
    assert share(result, "a") == 0.5
    result.hold(gang=gang("z", queue="a", per_pod=pod(0, cpu=90)), pool="h100", size=1)
    assert share(result, "a") == 0.9
    assert share(result, "b") == 0.0


def test_a_share_is_for_a_weight_and_goes_when_the_gang_goes() -> None:
    result = book(A, B)
    gang_a = gang("x", nodes=4, gpus=2, queue="b", roles=(Role(name="l", pods=2, per_pod=pod(0)),))
    result.hold(gang=gang_a, pool="h100", size=2)
    assert share(result, "b") == 4 / 12 / 2
    result.hold(gang=gang_a, pool="h100", size=4)
    assert share(result, "b") == 8 / 12 / 2
    undo = result.credit(gang=gang_a, pool="h100")
    assert share(result, "b") == 0.0
    undo()
    assert share(result, "b") == 8 / 12 / 2


def test_what_is_kept_for_a_gang_counts_until_it_starts_or_gives_it_back() -> None:
    ledger, job = book(A), gang("x", gpus=4, queue="a")
    ledger.promise(gang=job, pool="h100", size=1)
    assert share(ledger, "a") == 4 / 12
    assert ledger.has_room(gang=job, pool="h100", size=1) is False
    ledger.promise(gang=job, pool="h100", size=None)
    assert share(ledger, "a") == 0.0


def test_a_cohort_has_what_its_members_have_together() -> None:
    org, a, b = Queue(name="org", nominal={}), replace(A, parent="org"), replace(B, parent="org")
    result = book(org, a, b, history={"a": 100.0, "b": 50.0})
    result.hold(gang=gang("x", nodes=4, queue="a"), pool="h100", size=4)
    result.hold(gang=gang("y", nodes=1, queue="org"), pool="spot", size=1)
    assert result.shares is not None
    root = result.tree.branches[result.tree.leaf_of["a"]].path[-1]
    past = 150.0 * 0.6931471805599453 / FAIR.history_seconds
    assert result.shares.share(root) == pytest.approx(5 / 12 + past)
    assert share(result, "org") == 1 / 12


def test_what_a_queue_has_always_had_counts_as_what_it_has() -> None:
    history: dict[str, float] = {}
    for _ in range(3000):
        history = decay(history=history, shares={"b": 0.4}, seconds=600, half_life=86400)
    result = book(A, B, history=history)
    assert share(result, "b") == pytest.approx(0.4 / 2)
    assert share(book(A, B, policy=replace(FAIR, history_weight=0.0), history=history), "b") == 0.0


def test_half_of_the_past_is_forgotten_after_a_half_life() -> None:
    assert decay(history={"a": 8.0}, shares={}, seconds=20, half_life=10) == {"a": 2.0}
    assert decay(history={"a": 8.0}, shares={}, seconds=1e9, half_life=10) == {}
    assert decay(history={"a": 8.0}, shares={"a": 1.0}, seconds=5, half_life=0) == {}


def test_cutting_a_time_into_pieces_changes_nothing() -> None:
    once = decay(history={"a": 3.0}, shares={"a": 0.5, "b": 1.0}, seconds=60, half_life=25)
    history = {"a": 3.0}
    for _ in range(6):
        history = decay(history=history, shares={"a": 0.5, "b": 1.0}, seconds=10, half_life=25)
    assert history == pytest.approx(once)


def test_the_shares_of_a_snapshot_are_those_of_the_queues_own_jobs() -> None:
    org, a = Queue(name="org", nominal={}), replace(A, parent="org")
    running = (
        admitted(gang("x", nodes=2, gpus=2, queue="a"), "n0", "n0"),
        admitted(gang("y", queue="a", per_pod=pod(0, cpu=75)), "n0"),
        admitted(gang("z", queue="deleted", gpus=1), "n1", pool="spot"),
    )
    result = dominant_shares(snapshot(org, a, admitted=running))
    assert result == {"a": 0.75, "deleted": 1 / 12}


def test_shares_are_only_kept_where_somebody_asks_for_them() -> None:
    assert book(A, policy=Policy()).shares is None


def test_a_small_pool_is_no_resource_of_its_own() -> None:
    """64 of 80 GPUs of the large pool, and 4 of 4 of a small one with other GPUs."""
    pools = (Pool(name="large"), Pool(name="small"))
    nodes = tuple(
        Node(name=pool, pool=pool, allocatable=Resources(gpus=gpus, pods=99))
        for pool, gpus in (("large", 80), ("small", 4))
    )
    running = (
        admitted(gang("x", nodes=8, gpus=8, queue="a"), *["large"] * 8, pool="large"),
        admitted(gang("y", gpus=4, queue="b"), "small", pool="small"),
    )
    cluster = Snapshot(nodes=nodes, pools=pools, queues=(A, B), admitted=running)
    assert dominant_shares(cluster) == {"a": 64 / 84, "b": 4 / 84}
    weighted = replace(cluster, pools=(pools[0], replace(pools[1], share_weight=16)))
    assert dominant_shares(weighted) == {"a": 64 / 144, "b": 64 / 144}


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_those_of_a_sum_over_all_gangs(seed: int) -> None:
    choice = random.Random(seed)
    pools = tuple(
        Pool(
            name=f"p{number}",
            parts_per_gpu=choice.choice([1, 1, 4, 7]),
            share_weight=choice.choice([1, 1, 2, 5]),
        )
        for number in range(choice.randrange(1, 5))
    )
    nodes = tuple(
        Node(
            name=pool.name,
            pool=pool.name,
            allocatable=Resources(gpus=choice.randrange(1, 99), cpu_millis=50_000, pods=99),
        )
        for pool in pools
    )
    running = tuple(
        admitted(
            gang(str(number), gpus=choice.randrange(5), queue=choice.choice("ab")),
            pool.name,
            pool=pool.name,
        )
        for number in range(20)
        for pool in [choice.choice(pools)]
    )
    cluster = Snapshot(nodes=nodes, pools=pools, queues=(A, B), admitted=running)
    worth = {pool.name: Fraction(pool.share_weight, pool.parts_per_gpu) for pool in pools}
    whole = sum(node.allocatable.gpus * worth[node.pool] for node in nodes)
    cpu = sum(node.allocatable.cpu_millis for node in nodes)
    for name, share_now in dominant_shares(cluster).items():
        mine = [held for held in running if held.gang.queue == name]
        gpus = sum(held.gang.per_pod.gpus * worth[held.pool] for held in mine) / whole
        cpus = Fraction(sum(held.gang.per_pod.cpu_millis for held in mine), cpu)
        assert share_now == pytest.approx(float(max(gpus, cpus)))
