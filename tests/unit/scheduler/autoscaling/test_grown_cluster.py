"""The tries and the lines of Python that requests for new nodes take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import (
    AskedNodes,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    NodeOffer,
    Policy,
    Queue,
    Resources,
    Role,
    decide,
)
from drumline_scheduler.autoscaling.grown_cluster import GangStart, GrownCluster
from drumline_scheduler.model import Node
from drumline_scheduler.model.autoscaling import ZONE_LABEL
from drumline_scheduler.offered_nodes import OfferedNodes
from tests.property.tenant_bounds import counted_lines
from tests.unit.scheduler.builders import cluster, gang, node, pod

OFFER = NodeOffer(node=node("new", "r1", gpus=8), pool_limit=1000)


def started(
    needy: Gang, *nodes: Node, offer: NodeOffer = OFFER, pools: tuple[str, ...] = ("h100",)
) -> tuple[GangStart, list[int]]:
    """Start a gang, and return the numbers of nodes that had come in each try."""
    tries: list[int] = []

    def decided(cycle: CycleInput) -> Decisions:
        new = [each for each in cycle.snapshot.nodes if each.name.startswith("~")]
        tries.append(sum(each.used.gpus == 0 for each in new))
        return decide(cycle)

    world = replace(cluster(*nodes, pools=pools), offers=())
    grown = GrownCluster(world, now=0.0, decide=decided, nodes=OfferedNodes())
    start = grown.start(needy, offer=offer, most=needy.nodes + needy.extras)
    assert start is not None
    return start, tries


@pytest.mark.parametrize(
    ("pods", "gpus", "free", "tries", "fewest"),
    [
        (40, 8, 0, [40], 40),
        (40, 8, 10, [30], 30),
        (40, 4, 10, [10], 10),
        (40, 4, 20, [40], 0),
        (40, 5, 10, [30], 30),
    ],
)
def test_no_fewer_nodes_are_tried_than_the_pods_need(
    pods: int, gpus: int, free: int, tries: list[int], fewest: int
) -> None:
    there = [node(f"n{index:02}", "r1", gpus=8) for index in range(free)]
    start, made = started(gang("big", nodes=pods, gpus=gpus), *there)
    assert (start.need.nodes, made) == (fewest, tries)


def test_free_nodes_in_another_zone_are_not_counted() -> None:
    offer = replace(OFFER, zone="a", node=replace(OFFER.node, labels={ZONE_LABEL: "a"}))
    there = [
        replace(node(f"n{index}", gpus=8), labels={ZONE_LABEL: zone})
        for index, zone in enumerate("ab")
    ]
    start, tries = started(gang("big", nodes=9, gpus=8), *there, offer=offer)
    assert (start.need.nodes, tries) == (8, [8])


def test_one_node_less_is_tried_where_the_pods_may_need_fewer() -> None:
    # New nodes are in rack r1. The free node of rack r0 does not help, which no sum shows.
    free = [node(f"n{index}", f"r{index}", gpus=8) for index in range(2)]
    start, tries = started(gang("rack", nodes=4, gpus=8, required_level="rack"), *free)
    assert (start.need.nodes, tries) == (3, [2, 4, 2])


def test_a_gang_that_also_fits_in_another_pool_needs_no_node_there() -> None:
    there = [node(f"n{index}", gpus=8, pool="a100") for index in range(3)]
    start, _ = started(gang("either", nodes=3, gpus=8), *there, pools=("h100", "a100"))
    assert (start.need.nodes, start.placed.pool) == (0, "a100")


def test_no_node_is_requested_for_a_gang_that_fits_where_pods_end() -> None:
    """Its other pool comes last, and its resources there are free once the pods are gone."""
    ending = node("b0", "r0", gpus=8, pool="b", used=pod(8), terminating=pod(8))
    queues = (Queue(name="research", nominal={"a": 100, "b": 100}),)
    world = replace(
        cluster(ending, pools=("a", "b"), queues=queues),
        offers=(NodeOffer(node=node("new", "r1", gpus=8, pool="a"), pool_limit=100),),
    )
    needy = gang("w", gpus=8, pools=("a", "b"))
    given = CycleInput(snapshot=world, pending=(needy,), policy=Policy(), now=0.0)
    assert decide(given).needs_nodes == ()


def spread(pods: int) -> Gang:
    """A gang whose roles are placed one after another, each pod on an empty node if possible."""
    small = Resources(cpu_millis=1000, pods=1)
    roles = tuple(Role(name=f"r{index}", pods=pods, per_pod=small) for index in range(3))
    return replace(gang("roles", nodes=pods, gpus=8), roles=roles)


def test_a_costly_gang_has_few_tries() -> None:
    start, tries = started(
        spread(100), *(node(f"n{index:02}", "r1", gpus=8) for index in range(60))
    )
    assert start.need.nodes == 40
    assert len(tries) <= 7, tries


def test_the_shares_of_pods_on_one_node_are_added() -> None:
    role = Role(name="r", pods=3, per_pod=pod(2))
    start, _ = started(replace(gang("mixed", nodes=2, gpus=4), roles=(role,)))
    assert sorted(share.gpus for share in start.need.shares) == [6, 8]


def lines_of_a_cycle_with_a_request(*, pods: int) -> int:
    """Lines of Python of a cycle in which 1,250 nodes are still requested for a gang."""
    needy = gang("big", nodes=pods, gpus=10_000 // pods)
    queues = (Queue(name="research", nominal={"h100": 100_000}),)
    world = cluster(*(node(f"n{index}", gpus=8) for index in range(32)), queues=queues)
    world = replace(world, offers=(replace(OFFER, pool_limit=2000),))
    cache = CycleCache()
    lines = 0
    for second in range(3):
        given = CycleInput(snapshot=world, pending=(needy,), policy=Policy(), now=float(second))
        with counted_lines(2_000_000) as counted:
            decisions = decide(given, cache=cache)
        (need,) = decisions.needs_nodes
        asked = AskedNodes(uid=need.uid, pool=need.pool, nodes=need.nodes)
        world, lines = replace(world, asked=(asked,)), counted.count
    return lines


def test_an_open_request_costs_little_for_each_node_and_nothing_for_each_pod() -> None:
    large, many = (lines_of_a_cycle_with_a_request(pods=pods) for pods in (1250, 10_000))
    assert many < 1.25 * large
    assert many < 400_000


def test_full_nodes_cost_a_bound_next_to_nothing() -> None:
    full = [node(f"n{index}", "r1", gpus=8, used=pod(8)) for index in range(1000)]
    grown = GrownCluster(cluster(*full), now=0.0, decide=decide, nodes=OfferedNodes())
    with counted_lines(100_000) as counted:
        lacks = grown._shortages(gang("big", nodes=40, gpus=8), pods=40)
    assert lacks["h100"].new_nodes(OFFER) == 40
    assert counted.count < 12 * len(full)
