"""Jobs over two pools: their smallest size on nodes that stay, the rest on spot nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import (
    Admitted,
    CycleInput,
    Decisions,
    Gang,
    Node,
    Policy,
    Queue,
    Snapshot,
    decide,
)
from drumline_scheduler.forecast.cluster import ForecastCluster, promised
from drumline_scheduler.model import (
    CapacityType,
    NodeOffer,
    Pool,
    PreemptionRule,
    PriceRule,
    SpotRule,
    WithinQueue,
    with_surplus,
)
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, gang, node

POOLS = (
    Pool(name="h100", price=2_500_000, gpu_model="H100"),
    Pool(name="spot", capacity=CapacityType.SPOT, price=900_000, gpu_model="H100"),
)
NODES = (*(node(f"n{i}") for i in range(2)), *(node(f"s{i}", pool="spot") for i in range(4)))
RULE = PriceRule(spot=SpotRule.SURPLUS)
RESEARCH = Queue(name="research", nominal={"h100": 64, "spot": 64}, price_rule=RULE)


def elastic(name: str = "llama", *, sizes: tuple[int, ...] = (2, 3, 4, 6), at: float = 0) -> Gang:
    """Pods of 2 GPUs, one on each node; two of them at least."""
    whole = gang(name, nodes=sizes[-1], gpus=2, at=at, sizes=sizes)
    return with_surplus(whole, smallest=sizes[0])


def surplus_of(job: Gang) -> Gang:
    assert job.surplus is not None
    return job.surplus


def snapshot(
    *running: Admitted,
    nodes: tuple[Node, ...] = NODES,
    queue: Queue = RESEARCH,
    pools: tuple[Pool, ...] = POOLS,
) -> Snapshot:
    """All places of gangs that run are promised to them."""
    held = tuple(
        replace(each, reserved=frozenset(range(len(each.assignment))) - each.lost)
        for each in running
    )
    return Snapshot(nodes=nodes, pools=pools, queues=(queue,), admitted=held)


def cycle(world: Snapshot, *pending: Gang, policy: Policy | None = None) -> Decisions:
    """One cycle, of which all invariants hold."""
    rules = policy or Policy()
    decisions = decide(CycleInput(snapshot=world, pending=pending, policy=rules, now=0.0))
    assert not violations(snapshot=world, pending=pending, decisions=decisions, policy=rules)
    return decisions


def places(decisions: Decisions) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {each.uid: (each.pool, each.assignment) for each in decisions.placed}


def test_the_smallest_size_starts_on_nodes_that_stay_and_the_rest_on_spot_nodes() -> None:
    job = elastic()
    assert places(cycle(snapshot(), job)) == {
        job.uid: ("h100", ("n0", "n1")),
        f"{job.uid}/surplus": ("spot", ("s0", "s1", "s2", "s3")),
    }


def test_surplus_has_the_largest_size_for_which_there_is_room() -> None:
    job = elastic()
    started = places(cycle(snapshot(nodes=NODES[:5]), job))
    assert started[f"{job.uid}/surplus"] == ("spot", ("s0", "s1"))  # of sizes 1, 2 and 4


def test_without_room_in_a_spot_pool_the_smallest_size_runs_alone() -> None:
    job = elastic()
    assert list(places(cycle(snapshot(nodes=NODES[:2]), job))) == [job.uid]


def test_without_room_for_the_smallest_size_nothing_runs_on_spot_nodes() -> None:
    job = elastic()
    decisions = cycle(snapshot(nodes=NODES[1:]), job)
    assert decisions.placed == ()
    assert [each.uid for each in decisions.blocked] == [job.uid]


def test_quota_of_each_pool_bounds_what_is_held_there() -> None:
    queue = replace(RESEARCH, nominal={"h100": 4, "spot": 5})
    job = elastic()
    started = places(cycle(snapshot(queue=queue), job))
    assert started[f"{job.uid}/surplus"] == ("spot", ("s0", "s1"))  # 4 of 5 GPUs


def test_surplus_starts_and_grows_beside_a_gang_that_runs() -> None:
    job = elastic()
    base = admitted(job, "n0", "n1")
    assert places(cycle(snapshot(base))) == {
        f"{job.uid}/surplus": ("spot", ("s0", "s1", "s2", "s3"))
    }
    some = admitted(surplus_of(job), "s1", pool="spot")
    (grown,) = cycle(snapshot(base, some)).resized
    assert (grown.uid, grown.kept, grown.added) == (some.gang.uid, (0,), ("s0", "s2", "s3"))


@pytest.mark.parametrize(
    "change",
    [{"lost": frozenset({1})}, {"leaving": True}, {"displaced": frozenset({0})}],
    ids=["broken", "leaving", "about to move"],
)
def test_nothing_grows_beside_a_gang_that_is_not_whole_or_does_not_stay(
    change: dict[str, object],
) -> None:
    job = elastic()
    base = replace(admitted(job, "n0", "n1"), **change)  # type: ignore[arg-type]
    some = admitted(surplus_of(job), "s1", pool="spot", leaving=base.leaving)
    for world in (snapshot(base, nodes=NODES[:5]), snapshot(base, some, nodes=NODES[:5])):
        decisions = cycle(world)
        assert not decisions.resized
        assert not any(each.uid.endswith("/surplus") for each in decisions.placed)


def test_surplus_is_not_taken_from_a_gang_that_waits() -> None:
    job = elastic()
    big = gang("big", nodes=4, gpus=2, at=1, price_rule=PriceRule(spot=SpotRule.ONLY))
    open_queue = replace(RESEARCH, price_rule=PriceRule())
    asks = replace(job, price_rule=RULE, surplus=replace(surplus_of(job), price_rule=RULE))
    taken = (*NODES[:5], replace(NODES[5], used=NODES[5].allocatable))
    decisions = cycle(snapshot(admitted(asks, "n0", "n1"), queue=open_queue, nodes=taken), big)
    assert decisions.placed == ()


def test_surplus_is_of_the_same_gpus() -> None:
    other = (POOLS[0], replace(POOLS[1], gpu_model="A100"))
    job = elastic()
    assert list(places(cycle(snapshot(pools=other), job))) == [job.uid]
    in_parts = (POOLS[0], replace(POOLS[1], parts_per_gpu=7))
    assert list(places(cycle(snapshot(pools=in_parts), job))) == [job.uid]
    unknown = (POOLS[0], replace(POOLS[1], gpu_model=""))
    assert len(places(cycle(snapshot(pools=unknown), job))) == 2


def test_lost_spot_nodes_shrink_it_to_what_is_left_and_to_its_smallest_size() -> None:
    job = elastic()
    base = admitted(job, "n0", "n1")
    two = admitted(surplus_of(job), "s0", "s1", pool="spot", lost=frozenset({1}))
    (shrunk,) = cycle(snapshot(base, two, nodes=NODES[:3])).resized
    assert (shrunk.uid, shrunk.kept, shrunk.added) == (two.gang.uid, (0,), ())
    none = replace(two, lost=frozenset({0, 1}))
    (gone,) = cycle(snapshot(base, none, nodes=NODES[:2])).resized
    assert (gone.uid, gone.kept, gone.added) == (two.gang.uid, (), ())


def test_lost_spot_nodes_are_replaced_by_others_of_their_pool() -> None:
    job = elastic()
    two = admitted(surplus_of(job), "s0", "s1", pool="spot", lost=frozenset({1}))
    gone = (*NODES[:3], replace(NODES[3], ready=False), *NODES[4:])
    (repaired,) = cycle(snapshot(admitted(job, "n0", "n1"), two, nodes=gone)).placed
    assert (repaired.assignment, repaired.replaced) == (("s0", "s2"), (1,))


def test_broken_surplus_waits_while_its_gang_is_broken() -> None:
    job = elastic()
    base = admitted(job, "n0", "n1", lost=frozenset({0}))
    two = admitted(surplus_of(job), "s0", "s1", pool="spot", lost=frozenset({1}))
    unready = (replace(NODES[0], ready=False), *NODES[1:])
    decisions = cycle(snapshot(base, two, nodes=unready))
    assert (decisions.placed, decisions.resized) == ((), ())
    assert [each.uid for each in decisions.blocked] == [job.uid]
    assert len(cycle(snapshot(base, two)).placed) == 2


def test_whoever_may_preempt_takes_the_surplus_and_leaves_the_rest() -> None:
    job = elastic()
    preempts = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY)
    queue = replace(RESEARCH, preemption=preempts, price_rule=PriceRule())
    held = (
        admitted(job, "n0", "n1"),
        admitted(surplus_of(job), "s0", "s1", "s2", "s3", pool="spot"),
    )
    urgent = gang("urgent", nodes=4, gpus=2, priority=1, pool="spot")
    (preemption,) = cycle(snapshot(*held, queue=queue), urgent).preemptions
    assert [(each.uid, each.kept) for each in preemption.victims] == [(held[1].gang.uid, ())]


def test_a_queue_that_is_drained_has_both_leave_as_one() -> None:
    job = elastic()
    queue = replace(RESEARCH, drained=True, held=True)
    held = (admitted(job, "n0", "n1"), admitted(surplus_of(job), "s0", pool="spot"))
    (eviction,) = cycle(snapshot(*held, queue=queue)).evictions
    assert (eviction.uid, eviction.gpus) == (job.uid, 6)


def test_ahead_in_time_surplus_ends_with_its_gang() -> None:
    job = elastic()
    world = snapshot(nodes=NODES)
    waits = elastic("next", at=1)
    future = ForecastCluster(
        snapshot=promised(world), pending=(job, waits), now=0.0, length=lambda *_: 100.0
    )
    future.carry_out(
        decide(
            CycleInput(snapshot=future.snapshot, pending=future.pending, policy=Policy(), now=0.0)
        )
    )
    assert {held.gang.uid for held in future.snapshot.admitted} == {
        job.uid,
        surplus_of(job).uid,
    }
    assert future.go_on(until=None)
    assert (future.now, future.snapshot.admitted) == (100.0, ())
    assert [each.uid for each in future.pending] == [waits.uid]


def asked_for(wide: Gang, *running: Admitted, nodes: tuple[Node, ...]) -> Decisions:
    """What is decided where the spot pool may grow, for a job with surplus and a wide one."""
    job = elastic()
    mixed = replace(job, price_rule=RULE, surplus=replace(surplus_of(job), price_rule=RULE))
    world = replace(
        snapshot(*running, nodes=nodes),
        queues=(replace(RESEARCH, price_rule=PriceRule()),),
        offers=(NodeOffer(node=node("new", pool="spot"), pool_limit=8),),
    )
    return cycle(world, *(() if running else (mixed,)), wide)


def test_no_surplus_starts_on_free_nodes_of_one_that_waits_for_more() -> None:
    wide = gang("wide", nodes=3, gpus=2, at=1, pool="spot")
    decisions = asked_for(wide, nodes=NODES[:4])
    assert list(places(decisions)) == [elastic().uid]
    assert [(each.uid, each.nodes) for each in decisions.needs_nodes] == [(wide.uid, 1)]


def test_who_waits_for_no_nodes_keeps_no_surplus_from_its_start() -> None:
    wide = gang("wide", nodes=9, gpus=2, at=1, pool="spot")
    decisions = asked_for(wide, nodes=NODES[:4])
    assert places(decisions)[surplus_of(elastic()).uid] == ("spot", ("s0", "s1"))
    assert decisions.needs_nodes == ()


def test_who_waits_for_more_keeps_no_surplus_from_its_repair() -> None:
    job, wide = elastic(), gang("wide", nodes=3, gpus=2, at=1, pool="spot")
    two = admitted(surplus_of(job), "s0", "s9", pool="spot", lost=frozenset({1}))
    decisions = asked_for(wide, admitted(job, "n0", "n1"), two, nodes=NODES[:4])
    assert places(decisions) == {surplus_of(job).uid: ("spot", ("s0", "s1"))}
    assert [(each.uid, each.nodes) for each in decisions.needs_nodes] == [(wide.uid, 3)]
