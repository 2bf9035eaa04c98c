"""Which pools a gang is tried in, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import BlockReason, Gang, Queue, Remedy, RemedyKind, Snapshot
from drumline_scheduler.model import Pool, Role
from drumline_scheduler.quota.pool_selection import devices_of, uncharged_devices
from tests.texts import missing
from tests.unit.scheduler.builders import cluster, gang, node, pod, queue, room, run

POOLS = ("a", "b", "c")
RESEARCH = Queue(name="research", nominal={"a": 2, "b": 2, "c": 2})


def world(each_queue: Queue = RESEARCH) -> Snapshot:
    nodes = (node(f"n-{pool}", pool=pool) for pool in POOLS)
    return cluster(*nodes, pools=POOLS, queues=(each_queue,), levels=())


def where(*gangs: Gang, snapshot: Snapshot | None = None) -> list[str]:
    return [item.pool for item in run(snapshot or world(), *gangs).placed]


def jobs(count: int, **changes: object) -> list[Gang]:
    made = [gang(f"g{i}", gpus=2, at=i) for i in range(count)]
    return [replace(item, **changes) for item in made]  # pyright: ignore[reportArgumentType]


def test_pools_are_tried_in_the_order_in_which_they_are_named() -> None:
    assert where(*jobs(3, pools=("c", "a"))) == ["c", "a"]
    assert where(*jobs(3)) == ["a", "b", "c"]
    assert where(*jobs(3, pool="b")) == ["b"]


def test_a_pool_without_quota_and_one_that_is_not_there_are_passed_over() -> None:
    partly = replace(RESEARCH, nominal={"a": 2, "b": 2})
    assert where(*jobs(1, pools=("x", "c", "b")), snapshot=world(partly)) == ["b"]


def test_quota_that_is_used_up_in_one_pool_leaves_the_next() -> None:
    little = replace(RESEARCH, nominal={"a": 1, "b": 2})
    assert where(*jobs(2, pools=("a", "b")), snapshot=world(little)) == ["b"]


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        (
            {"pool": "aa"},
            BlockReason.POOL_NOT_FOUND,
            "pool aa does not exist; pools: a, b, c",
        ),
        (
            {"pools": ("x", "y")},
            BlockReason.POOL_NOT_FOUND,
            "pools x, y do not exist; pools: a, b, c",
        ),
        (
            {"pools": ("x", "c")},
            BlockReason.NO_QUOTA_IN_POOL,
            (
                "queue research has no quota in pool c; it has quota in a, b; pool x does not exist"
                " (deleted?)"
            ),
        ),
        (
            {"pool": "c"},
            BlockReason.NO_QUOTA_IN_POOL,
            "queue research has no quota in pool c; it has quota in a, b",
        ),
    ],
)
def test_where_no_pool_is_left_the_names_are_told(
    changes: dict[str, object], reason: BlockReason, message: str
) -> None:
    snapshot = world(replace(RESEARCH, nominal={"a": 2, "b": 2}))
    (blocked,) = run(snapshot, *jobs(1, **changes)).blocked
    assert (blocked.reason, blocked.message) == (reason, message)


def test_pools_of_the_queues_quota_that_are_gone_are_named() -> None:
    snapshot = world(replace(RESEARCH, nominal={"old": 2, "older": 2}))
    (blocked,) = run(snapshot, *jobs(1)).blocked
    assert blocked.reason is BlockReason.NO_QUOTA_IN_POOL
    assert not missing(blocked.message, "any existing pool", "pools old, older do not exist")


def test_the_nearest_name_is_proposed() -> None:
    (blocked,) = run(world(), *jobs(1, pool="bb")).blocked
    assert blocked.remedy == Remedy(kind=RemedyKind.CORRECT_NAME, where="b")
    (blocked,) = run(world(), *jobs(1, queue="resaerch")).blocked
    assert blocked.remedy == Remedy(kind=RemedyKind.CORRECT_NAME, where="research")


def test_only_names_that_the_gang_may_use_are_proposed() -> None:
    queues = (
        replace(RESEARCH, name="teamA", max_priority=0),
        replace(RESEARCH, name="teamB", namespaces=frozenset({"other"})),
        queue("last"),
    )
    snapshot = replace(world(), queues=queues)
    (blocked,) = run(snapshot, *jobs(1, queue="team", priority=1)).blocked
    assert blocked.remedy == Remedy(kind=RemedyKind.CORRECT_NAME, where="last")
    (blocked,) = run(snapshot, *jobs(1, queue="teamA", priority=1)).blocked
    assert blocked.remedy == Remedy(kind=RemedyKind.CORRECT_NAME, where="0")
    # the namespaces that may are names of other tenants
    (blocked,) = run(snapshot, *jobs(1, queue="teamB")).blocked
    assert blocked.remedy is None


def test_without_quota_and_without_a_wish_quota_in_the_first_pool_is_proposed() -> None:
    (blocked,) = run(world(replace(RESEARCH, nominal={})), *jobs(1)).blocked
    assert blocked.remedy == Remedy(
        kind=RemedyKind.RAISE_QUOTA, where="research", pool="a", amount=2
    )


PARTS = (Pool(name="a"), Pool(name="b"), Pool(name="c", partitions=("x.com/half", "x.com/third")))


def test_a_pool_that_counts_parts_is_for_gangs_that_name_it_alone() -> None:
    snapshot = replace(world(), pools=PARTS)
    assert where(*jobs(3), snapshot=snapshot) == ["a", "b"]
    assert where(*jobs(2, pools=("c", "b")), snapshot=snapshot) == ["b"]
    assert where(*jobs(1, pool="c"), snapshot=snapshot) == ["c"]
    assert where(*jobs(1, pool="c", partition="x.com/half"), snapshot=snapshot) == ["c"]


@pytest.mark.parametrize(
    ("changes", "message", "right"),
    [
        (
            {"pools": ("c",)},
            "pool c counts partitions of GPUs: name only this pool, as gpuPool",
            None,
        ),
        (
            {"pool": "c", "partition": "x.com/halves"},
            "pool c has no partition x.com/halves; it has x.com/half, x.com/third",
            "x.com/half",
        ),
        (
            {"pool": "a", "partition": "x.com/half"},
            "pool a has no partition x.com/half; it has only whole GPUs",
            None,
        ),
    ],
)
def test_a_partition_that_a_pool_does_not_have_is_told(
    changes: dict[str, object], message: str, right: str | None
) -> None:
    (blocked,) = run(replace(world(), pools=PARTS), *jobs(1, **changes)).blocked
    assert (blocked.reason, blocked.message) == (BlockReason.POOL_NOT_FOUND, message)
    assert (blocked.remedy and blocked.remedy.where) == right


NEURON = "aws.amazon.com/neurondevice"


@pytest.mark.parametrize("where_named", ["main", "role"])
def test_a_device_that_no_quota_counts_is_refused_in_pools_that_do_not_allow_it(
    where_named: str,
) -> None:
    snapshot = world()
    asks = pod(1, extended=((NEURON, 15), ("rdma/hca", 1)))
    job = gang("g", pools=("a", "b"))
    if where_named == "main":
        job = replace(job, per_pod=asks)
    else:
        job = replace(job, roles=(Role(name="r", pods=1, per_pod=asks),))
    (blocked,) = run(snapshot, job).blocked
    assert blocked.reason is BlockReason.RESOURCE_NOT_ALLOWED
    assert not missing(blocked.message, NEURON, "pool a", "auxiliaryResources", "gpusPerNode")
    allowing = replace(
        snapshot,
        pools=tuple(replace(each, auxiliary=frozenset({NEURON})) for each in snapshot.pools[1:]),
        nodes=tuple(
            replace(each, allocatable=room(4, extended=((NEURON, 16), ("rdma/hca", 1))))
            for each in snapshot.nodes
        ),
    )
    assert where(job, snapshot=allowing) == ["b"]


def test_parts_of_gpus_are_charged_and_a_second_name_of_whole_ones_is_not() -> None:
    half, whole = "amd.com/half", "amd.com/gpu"
    pool = Pool(name="a", partitions=(half,), parts_per_gpu=2, gpu_resource=whole)
    plain = replace(pool, partitions=(), parts_per_gpu=1)
    job = gang("g", pool="a", partition=half)
    asks = replace(job, per_pod=pod(1, extended=((half, 1),)))
    assert uncharged_devices(devices_of(asks), pool=pool) == ()
    assert uncharged_devices(devices_of(asks), pool=plain) == (half,)
    other = replace(job, per_pod=pod(extended=((whole, 1),)))
    assert uncharged_devices(devices_of(other), pool=plain) == (whole,)
