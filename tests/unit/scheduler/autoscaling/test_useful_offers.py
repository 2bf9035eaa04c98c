"""New nodes that cannot help a gang are ruled out by its request alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import CycleInput, Decisions, Gang, NodeOffer, Policy, Queue, Role, decide
from drumline_scheduler.autoscaling import grown_cluster
from drumline_scheduler.autoscaling.node_offers import PoolSizes
from drumline_scheduler.autoscaling.useful_offers import UsefulOffers
from drumline_scheduler.model import (
    NodeOperator,
    NodeRequirement,
    Slice,
    Snapshot,
    Taint,
    TaintEffect,
)
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod

OFFER = NodeOffer(node=node("new", "r1", gpus=8), pool_limit=100)
QUEUES = (Queue(name="research", nominal={"h100": 64}),)
FULL = cluster(node("n0", "r0", gpus=8, used=pod(8)), queues=QUEUES)
BIG = gang("big", nodes=4, gpus=8)
ELSEWHERE = ((NodeRequirement(key="arch", operator=NodeOperator.EXISTS),),)


def helps(needy: Gang, *, snapshot: Snapshot = FULL, offer: NodeOffer = OFFER) -> bool:
    snapshot = replace(snapshot, offers=(offer,))
    useful = UsefulOffers(
        snapshot,
        sizes=PoolSizes(snapshot.nodes),
        has_quota=lambda each, _pool, size: each.gpus_at(size) <= 64,
    )
    assert useful.help_any(needy) == useful.helps(offer, needy)
    assert useful.may_help(needy) or not useful.helps(offer, needy)
    return useful.helps(offer, needy)


@pytest.mark.parametrize(
    ("needy", "is_helped"),
    [
        (BIG, True),
        (replace(BIG, nodes=9), False),
        (replace(BIG, nodes=9, sizes=(8, 9)), True),
        (replace(BIG, required_level="rack"), True),
        (replace(BIG, required_level="block"), False),
        (replace(BIG, preferred_level="block"), False),
        (replace(BIG, balanced_level="block"), False),
        (replace(BIG, slices=(Slice(level="block", pods=2),)), False),
        (replace(BIG, per_pod=pod(9)), False),
        (replace(BIG, per_pod=pod(1, cpu=1000)), False),
        (replace(BIG, roles=(Role(name="r", pods=1, per_pod=pod(9)),)), False),
        (replace(BIG, selector={"arch": "x"}), False),
        (replace(BIG, affinity=ELSEWHERE), False),
    ],
)
def test_an_offer_that_cannot_help_is_not_tried(needy: Gang, *, is_helped: bool) -> None:
    assert helps(needy) == is_helped
    world = replace(FULL, offers=(OFFER,))
    given = CycleInput(snapshot=world, pending=(needy,), policy=Policy(), now=0.0)
    tried = list[CycleInput]()
    original = grown_cluster.bare_cycle
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            grown_cluster,
            "bare_cycle",
            lambda *args, **named: tried.append(original(*args, **named)) or tried[-1],
        )
        decisions: Decisions = decide(given)
    assert bool(tried) == is_helped
    assert bool(decisions.needs_nodes) == is_helped


def test_taints_of_new_nodes_and_large_nodes_that_there_are_count() -> None:
    taint = Taint(key="x", value="", effect=TaintEffect.NO_SCHEDULE)
    assert not helps(BIG, offer=replace(OFFER, node=replace(OFFER.node, taints=(taint,))))
    mixed = replace(BIG, nodes=1, per_pod=pod(16), roles=(Role(name="r", pods=2, per_pod=pod(8)),))
    assert not helps(mixed)
    large = cluster(node("n0", "r0", gpus=16), queues=QUEUES)
    assert helps(mixed, snapshot=large)


def test_a_gang_that_lacks_small_pods_is_helped_whatever_its_others_request() -> None:
    """The node of its large pod may be of a kind that the pool no longer has."""
    roles = (Role(name="r", pods=1, per_pod=pod(8)),)
    running = replace(BIG, nodes=1, per_pod=pod(16), roles=roles)
    broken = admitted(running, "gone", "n0", lost=frozenset({0}))
    assert helps(running, snapshot=cluster(node("n0", "r0", gpus=8), running=(broken,)))


def test_quota_that_running_gangs_hold_counts() -> None:
    held = admitted(gang("held", nodes=5, gpus=8), *(f"n{index}" for index in range(5)))
    world = cluster(
        *(node(f"n{index}", gpus=8) for index in range(5)), queues=QUEUES, running=(held,)
    )
    world = replace(world, offers=(OFFER,))
    given = CycleInput(snapshot=world, pending=(BIG,), policy=Policy(), now=0.0)
    assert decide(given).needs_nodes == ()
    larger = replace(world, queues=(Queue(name="research", nominal={"h100": 72}),))
    assert decide(replace(given, snapshot=larger)).needs_nodes
