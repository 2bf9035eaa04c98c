"""A gang on a node that certainly goes asks for another one before it is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    AskedNodes,
    NodeOffer,
    Policy,
    Queue,
    Resources,
    Snapshot,
)
from drumline_scheduler.autoscaling.node_demands import DemandEnd, NodeDemands, demands_after
from drumline_scheduler.autoscaling.node_needs import MAX_GANGS
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, queue, run

TIMEOUTS = {"h100": 900.0}
SPOT = gang("spot", nodes=2, gpus=8)


def noticed(item: Any = SPOT, *, going: tuple[int, ...] = (1,), **changes: Any) -> Admitted:
    """A whole gang with a node for each pod, some of which are about to go."""
    names = [f"{item.uid}-{position}" for position in range(item.nodes)]
    held = admitted(item, *names, displaced=frozenset(going), must_move=True)
    return replace(held, **changes)


def growing(*running: Admitted, free: int = 0, limit: int = 100, **changes: Any) -> Snapshot:
    """The nodes of these gangs, cordoned if they are about to go, some free ones, and an offer."""
    nodes = [
        node(name, gpus=8, unschedulable=position in held.displaced)
        for held in running
        for position, name in enumerate(held.assignment)
        if position not in held.lost
    ]
    nodes += [node(f"free-{number}", gpus=8) for number in range(free)]
    offers = (NodeOffer(node=node("new", gpus=8), pool_limit=limit),)
    return replace(cluster(*nodes, running=running, **changes), offers=offers)


def asking(snapshot: Snapshot, uid: str, *, nodes: int) -> Snapshot:
    return replace(snapshot, asked=(AskedNodes(uid=uid, pool="h100", nodes=nodes),))


def needs(snapshot: Snapshot, *pending: Any, **changes: Any) -> dict[str, int]:
    decisions = run(snapshot, *pending, **changes)
    return {need.key.removeprefix("training/"): need.nodes for need in decisions.needs_nodes}


def test_it_asks_for_what_it_will_lack_and_is_not_rejected() -> None:
    decisions = run(growing(noticed()))
    (need,) = decisions.needs_nodes
    assert (need.key, need.nodes, need.pool_nodes) == ("training/spot", 1, 3)
    assert need.shares == (pod(8),)
    assert (decisions.placed, decisions.blocked, decisions.preemptions) == ((), (), ())


def test_it_asks_for_the_same_as_once_it_is_broken() -> None:
    three = gang("three", nodes=3, gpus=8)
    whole = noticed(three, going=(0, 2))
    broken = replace(whole, lost=whole.displaced, displaced=frozenset())
    asked = [run(growing(held)).needs_nodes[0] for held in (whole, broken)]
    assert asked[0] == replace(asked[1], pool_nodes=5)  # its old nodes are still in the pool


@pytest.mark.parametrize(
    "changes",
    [
        {"must_move": False},  # a cordon, which may last for days
        {"displaced": frozenset[int]()},
        {"leaving": True},
        {"giving_up": frozenset({0})},
        {"gang": replace(SPOT, group="pair")},
        {"gang": replace(SPOT, sizes=(1, 2))},  # shrinks
        {"gang": replace(SPOT, surplus_of="uid-base")},  # gives up
        {"gang": replace(SPOT, retry_at=9.0)},
    ],
)
def test_who_would_not_wait_for_nodes_once_broken_asks_for_none(changes: dict[str, Any]) -> None:
    assert needs(growing(noticed(**changes))) == {}


def test_an_elastic_gang_of_the_smallest_size_asks() -> None:
    elastic = gang("elastic", nodes=4, gpus=8, sizes=(2, 4))
    assert needs(growing(noticed(elastic, assignment=("a", "b")))) == {"elastic": 1}


def test_where_repairs_may_preempt_none_is_asked_for() -> None:
    assert needs(growing(noticed()), policy=Policy(repairs_preempt=True)) == {}


def test_a_broken_gang_asks_for_what_it_has_lost_alone() -> None:
    broken = noticed(gang("three", nodes=3, gpus=8), lost=frozenset({0}))
    assert needs(growing(broken)) == {"three": 1}


def test_a_gang_whose_node_takes_pods_again_asks_for_none() -> None:
    half = admitted(gang("half", gpus=4), "n0", displaced=frozenset({0}), must_move=True)
    offers = (NodeOffer(node=node("new", gpus=8), pool_limit=9),)
    snapshot = replace(cluster(node("n0", gpus=8), running=[half]), offers=offers)
    assert needs(snapshot) == needs(asking(snapshot, "uid-half", nodes=1)) == {}


def test_a_pool_that_may_not_grow_changes_nothing() -> None:
    late = gang("late", gpus=8)
    full = growing(noticed(), limit=2)
    bare = replace(full, offers=())
    assert run(full, late).needs_nodes == ()
    assert run(full).blocked == run(bare).blocked == ()


def test_with_a_free_node_it_moves_at_once() -> None:
    decisions = run(growing(noticed(), free=1))
    assert [placed.assignment for placed in decisions.placed] == [("uid-spot-0", "free-0")]
    assert decisions.needs_nodes == ()


def test_who_leaves_for_another_gang_asks_for_none() -> None:
    low = noticed(gang("low", nodes=2, gpus=8, queue="team", priority=-1))
    snapshot = growing(low, queues=(queue("team", 100),))
    decisions = run(snapshot, gang("high", gpus=8, queue="team", priority=1))
    assert [victim.uid for each in decisions.preemptions for victim in each.victims] == ["uid-low"]
    assert decisions.needs_nodes == ()


def test_the_nodes_that_come_one_by_one_are_kept_for_it() -> None:
    held = noticed(gang("three", nodes=3, gpus=8), going=(1, 2))
    late = gang("late", gpus=8, priority=5)
    half = run(asking(growing(held, free=1), "uid-three", nodes=2), late)
    assert half.placed == ()
    assert [(need.key, need.nodes) for need in half.needs_nodes] == [
        ("training/three", 1),
        ("training/late", 1),
    ]
    both = run(asking(growing(held, free=2), "uid-three", nodes=2), late)
    assert [(each.key, each.replaced) for each in both.placed] == [("training/three", (1, 2))]


def test_what_it_does_not_need_of_what_came_is_anybodys() -> None:
    late = gang("late", gpus=8)
    decisions = run(asking(growing(noticed(), free=2), "uid-spot", nodes=1), late)
    assert [each.key for each in decisions.placed] == ["training/spot", "training/late"]


def test_its_queue_pays_for_no_place_twice() -> None:
    """24 GPUs of quota: 16 are its own, and 8 are left for another gang while nodes come for it."""
    quota = Queue(name="research", nominal={"h100": 24})
    held = noticed(gang("two", nodes=2, gpus=8), going=(0, 1))
    snapshot = asking(growing(held, queues=(quota,)), "uid-two", nodes=2)
    small = replace(snapshot, nodes=(*snapshot.nodes, node("n", gpus=8), node("m", gpus=8)))
    assert needs(snapshot, gang("other", gpus=8)) == {"two": 2, "other": 1}
    assert needs(snapshot, gang("other", nodes=2, gpus=8)) == {"two": 2}
    assert [each.key for each in run(small, gang("other", gpus=8)).placed] == ["training/two"]


def test_broken_gangs_ask_before_it_and_pending_ones_after_it() -> None:
    lost = admitted(gang("lost", gpus=8, priority=-1), "gone", lost=frozenset({0}))
    pending = gang("pending", gpus=8, priority=9)
    snapshot = growing(noticed(), lost)
    line = [replace(snapshot, offers=(replace(snapshot.offers[0], pool_limit=n),)) for n in (3, 4)]
    assert [needs(each, pending) for each in line] == [{"lost": 1}, {"lost": 1, "spot": 1}]


def test_as_many_gangs_ask_as_of_any_others() -> None:
    held = [noticed(gang(f"g{number:02}", gpus=8), going=(0,)) for number in range(MAX_GANGS + 2)]
    assert len(needs(growing(*held))) == MAX_GANGS


class Demands:
    """The requests over time, as the operator keeps them."""

    def __init__(self) -> None:
        self.open = NodeDemands()
        self.ends: list[DemandEnd] = []

    def cycle(self, snapshot: Snapshot, *, now: float) -> list[tuple[float, int]]:
        """When each open demand was made, and its number of placeholders."""
        decisions = run(replace(snapshot, asked=self.open.asked), now=now)
        after = demands_after(
            self.open,
            needs=decisions.needs_nodes,
            started={placed.uid for placed in decisions.placed},
            running={held.gang.uid for held in snapshot.admitted},
            bound={held.gang.uid for held in snapshot.admitted},
            timeouts=TIMEOUTS,
            now=now,
        )
        self.open = after.demands
        self.ends += [end for _, end in after.ended]
        return [(demand.asked_at, len(demand.shares)) for demand in self.open.open]


def test_its_request_is_the_broken_gangs_once_the_node_is_lost() -> None:
    demands, whole = Demands(), noticed()
    broken = replace(whole, lost=frozenset({1}), displaced=frozenset())
    assert demands.cycle(growing(whole), now=1.0) == [(1.0, 1)]
    assert demands.cycle(growing(whole), now=2.0) == [(1.0, 1)]
    assert demands.cycle(growing(broken), now=3.0) == [(1.0, 1)]
    assert demands.cycle(growing(broken, free=1), now=4.0) == []
    assert demands.ends == [DemandEnd.STARTED]


def test_its_request_ends_with_the_notice() -> None:
    demands, whole = Demands(), noticed()
    assert demands.cycle(growing(whole), now=1.0) == [(1.0, 1)]
    assert demands.cycle(growing(replace(whole, displaced=frozenset())), now=2.0) == []
    assert demands.ends == [DemandEnd.NOT_NEEDED]


@pytest.mark.parametrize("going", ["displaced", "lost"])
def test_a_second_node_that_goes_is_asked_for_as_well(going: str) -> None:
    demands, three = Demands(), gang("three", nodes=3, gpus=8)
    whole = noticed(three, going=())
    first, both = (replace(whole, **{going: frozenset(lack)}) for lack in ((1,), (1, 2)))
    assert demands.cycle(growing(first), now=1.0) == [(1.0, 1)]
    assert demands.cycle(growing(both), now=2.0) == []
    assert demands.cycle(growing(both), now=3.0) == [(3.0, 2)]
    # One that is not about to go after all is asked for no longer.
    assert demands.cycle(growing(first), now=4.0) == []
    assert demands.cycle(growing(first), now=5.0) == [(5.0, 1)]


def test_a_new_leader_goes_on_with_what_was_asked() -> None:
    demands, whole = Demands(), noticed()
    assert demands.cycle(growing(whole), now=1.0) == [(1.0, 1)]
    read = tuple(replace(each, shares=(Resources(),)) for each in demands.open.open)
    demands.open = NodeDemands(open=read)
    assert demands.cycle(growing(whole), now=2.0) == [(1.0, 1)]
