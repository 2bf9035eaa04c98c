"""The choice of waiting gangs that are tried on more nodes, in one cycle and over several."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import (
    CycleInput,
    Decisions,
    Gang,
    NodeOffer,
    Policy,
    Role,
    Snapshot,
    decide,
)
from drumline_scheduler.autoscaling.grown_cluster import GrownCluster
from drumline_scheduler.autoscaling.node_offers import PoolSizes
from drumline_scheduler.autoscaling.node_tries import (
    MAX_OPEN_UNITS,
    MAX_TRIED,
    NodeTries,
    node_tries,
    units_of,
)
from drumline_scheduler.autoscaling.useful_offers import UsefulOffers
from drumline_scheduler.offered_nodes import OfferedNodes
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod

FULL = cluster(node("n0", "r0", gpus=8, used=pod(8)))


def offer(*, gpus: int = 8, limit: int = 100) -> NodeOffer:
    return NodeOffer(node=node("new", "r1", gpus=gpus), pool_limit=limit)


def tries(
    *waiting: Gang,
    offers: tuple[NodeOffer, ...] = (offer(),),
    budget: int | None = None,
    before: tuple[str, ...] = (),
    used: int = 0,
    there: int = 8,
) -> NodeTries:
    """The choice, on a cluster with one full node of `there` GPUs."""
    full = node("n0", "r0", gpus=there, used=pod(there))
    snapshot = replace(FULL, nodes=(full,), offers=offers)
    sizes = PoolSizes(snapshot.nodes)
    useful = UsefulOffers(snapshot, sizes=sizes, has_quota=lambda _gang, _pool, _size: True)
    return node_tries(waiting, useful=useful, budget=budget, before=before, used=used)


def crowd(count: int, *, namespace: str = "crowd") -> list[Gang]:
    return [
        gang(f"{namespace}{index}", key=f"{namespace}/{index}", gpus=8, at=float(index))
        for index in range(count)
    ]


def test_a_gang_of_which_no_pod_fits_on_a_new_node_is_not_tried() -> None:
    large, fits = gang("large", gpus=9), gang("fits", gpus=8)
    with_role = replace(large, roles=(Role(name="r", pods=1, per_pod=pod(1)),))
    assert tries(large, fits, with_role).gangs == (fits,)
    # A role pod fits on a new node, and the main pod on a node that there is.
    assert tries(with_role, offers=(offer(gpus=8),), there=16).gangs == (with_role,)


def test_a_gang_that_needs_more_gpus_than_the_pool_can_get_is_not_tried() -> None:
    enough, more = gang("enough", nodes=99, gpus=8), gang("more", nodes=100, gpus=8)
    assert tries(enough, more).gangs == (enough,)
    elastic = replace(more, sizes=(99, 100))
    assert tries(elastic).gangs == (elastic,)
    assert not tries(enough, offers=(offer(limit=1),)).gangs


def test_the_first_of_each_namespace_come_first() -> None:
    many, modest = crowd(2 * MAX_TRIED), crowd(1, namespace="other")[0]
    chosen = tries(*many, modest)
    assert chosen.gangs == (*many[: MAX_TRIED - 1], modest)
    assert chosen.late == (), "without a budget nothing is put off"


def test_beyond_the_budget_gangs_take_turns() -> None:
    many = crowd(20)
    first = tries(*many, budget=32)
    assert 0 < len(first.gangs) < 20
    assert {each.uid for each in many} == {each.uid for each in first.gangs} | set(first.late)
    second = tries(*many, budget=32, before=first.late)
    assert [each.uid for each in second.gangs] == list(first.late[: len(second.gangs)])
    costly = replace(many[0], roles=(Role(name="r", pods=115, per_pod=pod(1)),))
    assert tries(costly, *many[1:], budget=32).gangs == (costly,), "one is tried whatever it costs"


def test_gangs_with_open_requests_have_a_budget_together() -> None:
    """Each cycle finds their places again, however many pods they have."""
    large = [replace(each, nodes=10_000, per_pod=pod(0)) for each in crowd(2)]
    small = crowd(1, namespace="other")[0]
    assert tries(large[0], budget=32).gangs == (large[0],), "one may request whatever it costs"
    used = units_of(large[0], nodes=1000)
    assert tries(large[1], small, budget=32, used=used).gangs == (small,)
    assert tries(large[1], small, budget=32, used=used).late == (large[1].uid,)
    assert tries(large[1], small, budget=None, used=used).gangs == (large[1], small)
    many = crowd(8)
    eight = sum(units_of(each, nodes=100) for each in many)
    assert eight <= MAX_OPEN_UNITS, "as many as may request at a time (`MAX_GANGS`)"


def test_a_gang_behind_many_that_cannot_start_gets_its_nodes_in_a_later_cycle() -> None:
    """There may be enough GPUs for each of the others, but never enough nodes."""
    stuck = [
        replace(each, nodes=130 + index, per_pod=pod(5)) for index, each in enumerate(crowd(20))
    ]
    fits = gang("fits", key="crowd/fits", gpus=8, at=1000.0)
    given = CycleInput(
        snapshot=replace(FULL, offers=(offer(),)),
        pending=(*stuck, fits),
        policy=Policy(),
        now=0.0,
        try_budget=32,
    )
    made = [decide(given)]
    while not made[-1].needs_nodes:
        assert len(made) < 20
        made.append(decide(replace(given, deferred=made[-1].deferred)))
    assert [each.key for each in made[-1].needs_nodes] == [fits.key]
    assert len(made) > 1
    assert fits.uid in made[0].deferred
    whole = decide(replace(given, try_budget=None))
    assert [each.key for each in whole.needs_nodes] == [fits.key]


def test_nodes_that_were_made_in_advance_leave_the_size_of_the_cluster() -> None:
    """A view is rebuilt when the number of nodes changes."""
    sizes: list[int] = []

    def decided(cycle: CycleInput) -> Decisions:
        sizes.append(len(cycle.snapshot.nodes))
        return decide(cycle)

    grown = GrownCluster(replace(FULL, offers=()), now=0.0, decide=decided, nodes=OfferedNodes())
    grown.provide(offer(), 5)
    for name, nodes in (("a", 2), ("b", 3)):
        start = grown.start(gang(name, nodes=nodes, gpus=8), offer=offer(), most=nodes)
        assert start is not None
        assert start.need.nodes == nodes
    assert set(sizes) == {6}
    assert [each.node.name for each in grown.new] == [f"~h100//{index:06d}" for index in range(5)]


def test_many_new_nodes_that_did_not_help_leave_the_next_tries_small() -> None:
    sizes: list[int] = []

    def decided(cycle: CycleInput) -> Decisions:
        sizes.append(len(cycle.snapshot.nodes))
        return decide(cycle)

    grown = GrownCluster(replace(FULL, offers=()), now=0.0, decide=decided, nodes=OfferedNodes())
    large = gang("large", nodes=400, gpus=8, required_level="rack", selector={"kind": "none"})
    assert grown.start(large, offer=offer(), most=400) is None
    assert grown.start(gang("small", gpus=8), offer=offer(), most=1) is not None
    assert sizes[0] == 401
    assert set(sizes[1:]) == {2}


def test_a_cycle_of_only_starts_starts_the_same_gangs_and_nothing_else() -> None:
    elastic = gang("elastic", nodes=2, gpus=4, sizes=(1, 2))
    snapshot: Snapshot = cluster(
        node("n0", "r0", gpus=8),
        node("n1", "r0", gpus=4),
        running=[admitted(elastic, "n0")],
    )
    pending = (gang("fits", gpus=4), gang("large", gpus=9, at=1.0))
    whole = CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=0.0)
    decided, starts = decide(whole), decide(replace(whole, only_starts=True))
    assert decided.placed == starts.placed
    assert decided.resized
    assert not starts.resized
