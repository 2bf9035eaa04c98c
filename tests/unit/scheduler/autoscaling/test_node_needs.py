"""Nodes are asked for exactly those gangs that would start with them, and as few as possible."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import (
    AskedNodes,
    Blocked,
    BlockReason,
    CycleInput,
    Decisions,
    Gang,
    NeedsNodes,
    Node,
    NodeOffer,
    Policy,
    Queue,
    Resources,
    Role,
    Slice,
    Snapshot,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
    WaitingRule,
    decide,
)
from drumline_scheduler.autoscaling.node_needs import MAX_GANGS, Promised, with_node_needs
from drumline_scheduler.model import Obstacle, ObstacleKind
from drumline_scheduler.model.autoscaling import ZONE_LABEL
from drumline_scheduler.offered_nodes import OfferedNodes
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, after, cluster, gang, node, pod, queue, run

RESEARCH = Queue(name="research", nominal={"h100": 1000})


def offer(*domains: str, gpus: int = 8, limit: int = 100, **changes: object) -> NodeOffer:
    base = NodeOffer(node=node("new", *domains, gpus=gpus), pool_limit=limit)
    return replace(base, **changes)


def growing(*nodes: object, offers: tuple[NodeOffer, ...], **changes: object) -> Snapshot:
    return replace(cluster(*nodes, **changes), offers=offers)  # type: ignore[arg-type]


def needs(decisions: Decisions) -> dict[str, int]:
    return {need.key.removeprefix("training/"): need.nodes for need in decisions.needs_nodes}


def reasons(decisions: Decisions) -> dict[str, BlockReason]:
    return {each.key.removeprefix("training/"): each.reason for each in decisions.blocked}


def test_a_gang_on_an_empty_pool_needs_a_node_for_each_of_its_pods() -> None:
    decisions = run(growing(offers=(offer(),)), gang("big", nodes=32, gpus=8))
    assert decisions.needs_nodes == (
        NeedsNodes(
            key="training/big",
            uid="uid-big",
            pool="h100",
            nodes=32,
            pool_nodes=32,
            shares=(pod(8),) * 32,
        ),
    )
    (blocked,) = decisions.blocked
    assert blocked.reason is BlockReason.WAITING_FOR_NODES
    assert not missing(blocked.message, "256 GPUs", "32 pods", "8", "pool h100")


def test_pods_that_share_a_node_need_one() -> None:
    decisions = run(growing(offers=(offer(),)), gang("small", nodes=3, gpus=4))
    assert needs(decisions) == {"small": 2}
    (need,) = decisions.needs_nodes
    assert [share.gpus for share in need.shares] == [8, 4]


def test_what_is_free_counts_and_is_asked_for_as_well() -> None:
    nodes = [node("n0", gpus=8), node("n1", gpus=8)]
    decisions = run(growing(*nodes, offers=(offer(),)), gang("big", nodes=5, gpus=8))
    (need,) = decisions.needs_nodes
    assert (need.nodes, len(need.shares)) == (3, 5)


def test_places_of_pods_that_are_being_deleted_are_waited_for_and_not_asked_for() -> None:
    ending = [node(f"n{i}", gpus=8, used=pod(8), terminating=pod(8)) for i in range(2)]
    line = gang("restarts", nodes=3, gpus=8), gang("fits", gpus=8, at=1.0)
    waits = run(growing(*ending, offers=(offer(),)), *line)
    assert needs(waits) == {"fits": 1}
    assert reasons(waits)["restarts"] is not BlockReason.WAITING_FOR_NODES
    gone = [node(f"n{i}", gpus=8) for i in range(2)]
    assert needs(run(growing(*gone, offers=(offer(),)), line[0])) == {"restarts": 1}


def test_a_pod_that_is_being_deleted_beside_a_gang_keeps_it_from_nothing() -> None:
    small = replace(pod(0), cpu_millis=100)
    nodes = [node(f"n{i}", gpus=8, used=small, terminating=small) for i in range(2)]
    snapshot = growing(*nodes, offers=(offer(),))
    assert needs(run(snapshot, gang("big", nodes=3, gpus=8))) == {"big": 1}


def test_pods_that_should_have_been_gone_are_waited_for_no_more() -> None:
    stuck = node("n0", gpus=8, used=pod(8), terminating=pod(8), overdue=pod(8))
    snapshot = growing(stuck, offers=(offer(),))
    assert needs(run(snapshot, gang("big", nodes=2, gpus=8))) == {"big": 2}
    half = node("n0", gpus=8, used=pod(4).times(2), terminating=pod(4).times(2), overdue=pod(4))
    snapshot = growing(half, offers=(offer(),))
    assert needs(run(snapshot, gang("big", nodes=3, gpus=4))) == {}
    assert needs(run(snapshot, gang("big", nodes=2, gpus=8))) == {"big": 2}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"nominal": {"h100": 31}}, BlockReason.EXCEEDS_QUOTA),
        ({"user_limit": {"h100": 16}}, BlockReason.EXCEEDS_QUOTA),
        ({"max_priority": -1}, BlockReason.PRIORITY_TOO_HIGH),
        ({"namespaces": frozenset({"other"})}, BlockReason.NAMESPACE_NOT_ALLOWED),
    ],
)
def test_a_gang_that_its_queue_does_not_admit_asks_for_none(
    limits: dict[str, object], reason: BlockReason
) -> None:
    limited = replace(RESEARCH, **limits)  # type: ignore[arg-type]
    decisions = run(growing(offers=(offer(),), queues=(limited,)), gang("big", nodes=4, gpus=8))
    assert decisions.needs_nodes == ()
    assert reasons(decisions) == {"big": reason}


def test_a_gang_whose_namespace_is_being_deleted_asks_for_none() -> None:
    obstacle = Obstacle(kind=ObstacleKind.NAMESPACE_ENDS, message="it ends")
    ending = gang("big", nodes=4, gpus=8, obstacle=obstacle)
    decisions = run(growing(offers=(offer(),)), ending)
    assert decisions.needs_nodes == ()
    assert reasons(decisions) == {"big": BlockReason.NAMESPACE_TERMINATING}


def test_two_gangs_that_exceed_the_quota_together_ask_for_the_first_alone() -> None:
    snapshot = growing(offers=(offer(),), queues=(replace(RESEARCH, nominal={"h100": 40}),))
    pair = gang("first", nodes=4, gpus=8), gang("second", nodes=4, gpus=8, at=1.0)
    assert needs(run(snapshot, *pair)) == {"first": 4}


def test_what_starts_now_is_not_given_away_to_those_who_ask() -> None:
    nodes = [node("n0", gpus=8)]
    pair = gang("starts", gpus=8), gang("waits", nodes=2, gpus=8, at=1.0)
    decisions = run(growing(*nodes, offers=(offer(),)), *pair)
    assert [placed.key for placed in decisions.placed] == ["training/starts"]
    assert needs(decisions) == {"waits": 2}


def test_the_limit_of_the_pool_is_for_all_together() -> None:
    snapshot = growing(node("n0", gpus=8, ready=False), offers=(offer(limit=7),))
    gangs = [gang(f"g{i}", nodes=4 if i == 0 else 3 - i, gpus=8, at=float(i)) for i in range(3)]
    decisions = run(snapshot, *gangs)
    assert needs(decisions) == {"g0": 4, "g1": 2}
    assert reasons(decisions)["g2"] is not BlockReason.WAITING_FOR_NODES


def test_a_gang_beside_another_on_its_new_node_asks_for_none() -> None:
    pair = gang("first", gpus=4), gang("second", gpus=4, at=1.0), gang("third", gpus=4, at=2.0)
    assert needs(run(growing(offers=(offer(),)), *pair)) == {"first": 1, "third": 1}


def test_new_nodes_without_a_label_are_in_no_domain_that_is_required() -> None:
    racked = gang("racked", nodes=2, gpus=8, required_level="rack")
    assert run(growing(offers=(offer(),)), racked).needs_nodes == ()
    assert needs(run(growing(offers=(offer("r0"),)), racked)) == {"racked": 2}


def test_a_taint_of_new_nodes_must_be_tolerated() -> None:
    taint = Taint(key="team", value="a", effect=TaintEffect.NO_SCHEDULE)
    tainted = offer()
    tainted = replace(tainted, node=replace(tainted.node, taints=(taint,)))
    tolerates = Toleration(key="team", operator=TolerationOperator.EXISTS)
    assert run(growing(offers=(tainted,)), gang("bare", gpus=8)).needs_nodes == ()
    ours = gang("ours", gpus=8, tolerations=(tolerates,))
    assert needs(run(growing(offers=(tainted,)), ours)) == {"ours": 1}


def test_zones_are_tried_in_order_and_each_as_far_as_it_goes() -> None:
    zones = offer("a", zone="a", limit=6), offer("b", zone="b")
    decisions = run(
        growing(offers=zones, levels=("zone",)),
        gang("big", nodes=4, gpus=8, required_level="zone"),
        gang("small", nodes=2, gpus=8, at=1.0),
        gang("last", gpus=8, at=2.0),
    )
    assert [(need.zone, need.nodes) for need in decisions.needs_nodes] == [
        ("a", 4),
        ("a", 2),
        ("b", 1),
    ]


def test_a_gang_that_prefers_a_pool_asks_there_first() -> None:
    offers = offer(), replace(offer(), node=node("new", gpus=8, pool="a100"))
    snapshot = growing(
        offers=offers,
        pools=("h100", "a100"),
        queues=(replace(RESEARCH, nominal={"h100": 100, "a100": 100}),),
    )
    (need,) = run(snapshot, gang("g", gpus=8, pools=("a100", "h100"))).needs_nodes
    assert need.pool == "a100"


def test_what_was_asked_for_stays_though_the_nodes_that_came_fill_the_pool() -> None:
    booting = [node(f"n{i}", gpus=8, ready=False) for i in range(4)]
    snapshot = growing(*booting, offers=(offer(limit=4),))
    big = gang("big", nodes=4, gpus=8)
    assert run(snapshot, big).needs_nodes == ()
    asked = replace(snapshot, asked=(AskedNodes(uid="uid-big", pool="h100", nodes=4),))
    assert needs(run(asked, big, gang("late", gpus=8, at=-1.0))) == {"big": 4}


def test_nodes_that_others_took_are_not_asked_for_again_beyond_the_limit() -> None:
    taken = [node(f"n{i}", gpus=8, used=pod(8)) for i in range(3)]
    came = [node(f"n{i}", gpus=8) for i in range(3, 5)]
    snapshot = growing(*taken, *came, offers=(offer(limit=7),))
    big = gang("big", nodes=5, gpus=8)
    assert run(asking(snapshot, "uid-big", nodes=5), big).needs_nodes == ()
    wide = replace(snapshot, offers=(offer(limit=8),))
    assert needs(run(asking(wide, "uid-big", nodes=5), big)) == {"big": 3}


def asking(snapshot: Snapshot, *uids: str, nodes: int) -> Snapshot:
    asked = tuple(AskedNodes(uid=uid, pool="h100", nodes=nodes) for uid in uids)
    return replace(snapshot, asked=asked)


def test_nodes_that_come_one_by_one_are_kept_with_their_quota_for_the_gang_that_asked() -> None:
    limited = replace(RESEARCH, nominal={"h100": 36})
    nodes = [node("n0", gpus=8), node("n1", gpus=8), node("n2", gpus=4)]
    snapshot = growing(*nodes, offers=(offer(),), queues=(limited,))
    big, late = gang("big", nodes=4, gpus=8), gang("late", gpus=8, at=1.0, priority=5)
    snapshot = asking(snapshot, "uid-big", nodes=4)
    decisions = run(snapshot, big, late)
    assert (decisions.placed, needs(decisions)) == ((), {"big": 2})
    assert reasons(decisions) == {
        "big": BlockReason.WAITING_FOR_NODES,
        "late": BlockReason.QUOTA_EXHAUSTED,
    }
    # What it does not need is anybody's.
    beside = run(snapshot, big, gang("beside", gpus=4, at=1.0))
    assert [placed.assignment for placed in beside.placed] == [("n2",)]


def test_of_two_that_asked_the_first_gets_all_that_came() -> None:
    nodes = [node(f"n{i}", gpus=8) for i in range(3)]
    pair = gang("first", nodes=4, gpus=8), gang("second", nodes=3, gpus=8, at=1.0)
    snapshot = asking(growing(*nodes, offers=(offer(),)), "uid-first", "uid-second", nodes=4)
    decisions = run(snapshot, *pair)
    assert (decisions.placed, needs(decisions)) == ((), {"first": 1, "second": 3})
    more = replace(snapshot, nodes=(*snapshot.nodes, node("n3", gpus=8)))
    decisions = run(more, *pair)
    assert [placed.key for placed in decisions.placed] == ["training/first"]
    assert needs(decisions) == {"second": 3}


def test_a_broken_gang_keeps_what_came_for_it() -> None:
    held = admitted(gang("broken", nodes=3, gpus=8), "n0", "gone", "lost", lost=frozenset({1, 2}))
    nodes = [node("n0", gpus=8), node("n1", gpus=8)]
    snapshot = growing(*nodes, offers=(offer(),), running=(held,))
    snapshot = asking(snapshot, "uid-broken", nodes=2)
    decisions = run(snapshot, gang("late", gpus=8))
    assert decisions.placed == ()
    assert needs(decisions) == {"broken": 1, "late": 1}
    whole = replace(snapshot, nodes=(*snapshot.nodes, node("n2", gpus=8)))
    (placed,) = run(whole, gang("late", gpus=8)).placed
    assert (placed.key, placed.replaced) == ("training/broken", (1, 2))


def test_an_elastic_gang_asks_for_the_largest_size_that_it_can_have() -> None:
    elastic = gang("elastic", nodes=8, gpus=8, sizes=(2, 4, 8))
    assert needs(run(growing(offers=(offer(),)), elastic)) == {"elastic": 8}
    assert needs(run(growing(offers=(offer(limit=7),)), elastic)) == {"elastic": 4}


def test_a_broken_gang_asks_for_the_nodes_it_lost() -> None:
    held = admitted(gang("broken", nodes=3, gpus=8), "n0", "gone", "n2", lost=frozenset({1}))
    nodes = [node("n0", gpus=8), node("n2", gpus=8)]
    decisions = run(growing(*nodes, offers=(offer(),), running=(held,)))
    assert needs(decisions) == {"broken": 1}
    assert decisions.needs_nodes[0].shares == (pod(8),)


def test_a_broken_gang_that_nearly_fills_its_pool_asks_for_the_last_node() -> None:
    held = admitted(gang("broken", nodes=3, gpus=8), "n0", "gone", "n2", lost=frozenset({1}))
    nodes = [node("n0", gpus=8), node("n2", gpus=8)]
    assert needs(run(growing(*nodes, offers=(offer(limit=3),), running=(held,)))) == {"broken": 1}
    assert needs(run(growing(*nodes, offers=(offer(limit=2),), running=(held,)))) == {}


def test_new_nodes_serve_a_broken_gang_before_those_that_wait() -> None:
    held = admitted(gang("broken", gpus=8, at=9.0), "gone", lost=frozenset({0}))
    snapshot = growing(node("n0", gpus=8), offers=(offer(),), running=(held,))
    decisions = run(
        asking(snapshot, "uid-first", "uid-broken", nodes=2), gang("first", nodes=2, gpus=8)
    )
    assert [placed.key for placed in decisions.placed] == ["training/broken"]
    assert needs(decisions) == {"first": 2}


def test_places_of_one_whose_victims_leave_are_nobody_elses() -> None:
    low = admitted(gang("low", gpus=8, queue="team", priority=-1), "n0")
    snapshot = growing(
        node("n0", gpus=8), offers=(offer(),), running=(low,), queues=(queue("team", 100),)
    )
    high = gang("high", gpus=8, queue="team", priority=1)
    other = gang("other", gpus=8, queue="team", at=1.0)
    decisions = run(snapshot, high, other)
    assert [preemption.key for preemption in decisions.preemptions] == ["training/high"]
    assert needs(decisions) == {"other": 1}


def test_gangs_behind_one_that_holds_the_pool_ask_for_none() -> None:
    held = admitted(gang("runs", gpus=8), "n0")
    snapshot = growing(node("n0", gpus=8), offers=(offer(limit=1),), running=(held,))
    first, second = gang("first", gpus=8), gang("second", gpus=8, at=1.0)
    decisions = run(snapshot, first, second, policy=Policy(waiting=WaitingRule.STRICT))
    assert decisions.needs_nodes == ()


def test_groups_and_many_gangs_are_bounded() -> None:
    grouped = gang("grouped", gpus=8, group="pair", group_gangs=1)
    assert run(growing(offers=(offer(),)), grouped).needs_nodes == ()
    many = [gang(f"g{i:02}", gpus=8, at=float(i)) for i in range(MAX_GANGS + 4)]
    assert needs(run(growing(offers=(offer(),)), *many)) == {
        f"g{i:02}": 1 for i in range(MAX_GANGS)
    }


def some_world(seed: int) -> tuple[Snapshot, list[Gang]]:
    """A pool with a few nodes, one or two offers, and gangs of every shape."""
    random = Random(seed)
    nodes = [
        node(
            f"n{i}",
            random.choice(["r0", "r1", ""]),
            gpus=random.choice([1, 2, 4]),
            used=Resources(gpus=random.choice([0, 0, 1])),
            ready=random.random() < 0.9,
        )
        for i in range(random.randint(0, 4))
    ]
    limit = len(nodes) + random.randint(0, 6)
    offers = tuple(
        offer(
            random.choice(["r0", "r2", ""]),
            gpus=random.choice([2, 4]),
            limit=limit,
            zone=zone,
        )
        for zone in random.sample(["a", "b"], random.randint(1, 2))
    )
    quota = replace(RESEARCH, nominal={"h100": random.choice([4, 12, 1000])})
    return growing(*nodes, offers=offers, queues=(quota,)), [
        some_gang(random, number) for number in range(random.randint(1, 4))
    ]


def some_gang(random: Random, number: int) -> Gang:
    size = random.choice([1, 2, 4, 6])
    even, shape = size % 2 == 0, random.random()
    return gang(
        f"g{number}",
        nodes=size,
        gpus=random.choice([1, 1, 2, 4]),
        at=float(number),
        priority=random.choice([0, 0, 1]),
        required_level=random.choice([None, None, "rack"]),
        slices=(Slice(level="rack", pods=2),) if even and shape < 0.2 else (),
        sizes=(size // 2, size) if even and shape > 0.8 else (),
        roles=(Role(name="launcher", pods=1, per_pod=pod(0, cpu=1)),)
        if random.random() < 0.2
        else (),
    )


def with_nodes(snapshot: Snapshot, *more: Node) -> Snapshot:
    return replace(snapshot, nodes=(*snapshot.nodes, *more))


@pytest.mark.parametrize("first_seed", range(0, 120, 40))
def test_the_nodes_that_are_asked_for_are_enough_and_the_fewest(first_seed: int) -> None:
    """On random clusters, gang by gang as the nodes of each come: nobody counts on a place twice.

    With one node less the gang does not start, or a smaller size of it does.
    """
    asking = 0
    for seed in range(first_seed, first_seed + 40):
        snapshot, gangs = some_world(seed)
        decisions = run(snapshot, *gangs)
        limit = snapshot.offers[0].pool_limit
        asked = sum(need.nodes for need in decisions.needs_nodes)
        assert asked <= max(0, limit - len(snapshot.nodes)), seed
        asking += bool(asked)
        kinds = {each.zone: each.node for each in snapshot.offers}
        by_uid = {each.uid: each for each in gangs}
        world = replace(after(snapshot, gangs, decisions), offers=())
        needed = {need.uid: need for need in decisions.needs_nodes}
        for waits in decisions.blocked:
            needy, need = by_uid[waits.uid], needed.get(waits.uid)
            if need is None:  # it may fit beside those before it
                world = after(world, [needy], run(world, needy))
                continue
            new = kinds[need.zone]
            came = [replace(new, name=f"{need.uid}-{i}") for i in range(need.nodes)]
            fewer = run(with_nodes(world, *came[1:]), needy).placed
            world = with_nodes(world, *came)
            whole = run(world, needy)
            assert whole.placed, seed
            assert not fewer or len(fewer[0].assignment) < len(whole.placed[0].assignment), seed
            taken = range(len(whole.placed[0].assignment))
            gpus = sum(needy.request_of(position).gpus for position in taken)
            assert sum(share.gpus for share in need.shares) == gpus, seed
            world = after(world, [needy], whole)
    assert asking > 5


EVERYTHING = (Toleration(operator=TolerationOperator.EXISTS),)


def test_a_node_that_is_being_set_up_is_no_place_even_for_who_tolerates_everything() -> None:
    starting = node("n0", gpus=8, starting=True)
    decisions = run(cluster(starting), gang("bold", gpus=8, tolerations=EVERYTHING))
    assert decisions.placed == ()
    assert "still being set up" in decisions.blocked[0].message
    ready = replace(starting, starting=False)
    assert run(cluster(ready), gang("bold", gpus=8, tolerations=EVERYTHING)).placed


def test_nodes_that_are_being_set_up_are_those_that_were_asked_for() -> None:
    """So they leave as much of the pool's limit to others as they did before they were there."""
    first, second = gang("first", nodes=4, gpus=8), gang("second", nodes=4, gpus=8, at=1.0)
    asked = (AskedNodes(uid="uid-first", pool="h100", nodes=4),)
    nodes = [node(f"n{number}", gpus=8, starting=number > 0) for number in range(4)]
    snapshot = replace(growing(*nodes, offers=(offer(limit=8),)), asked=asked)
    decisions = run(snapshot, first, second)
    assert needs(decisions) == {"first": 3, "second": 4}
    assert [need.pool_nodes for need in decisions.needs_nodes] == [0, 8]
    assert not missing(decisions.blocked[0].message, "3 nodes")
    smaller = replace(snapshot, offers=(offer(limit=7),))
    assert needs(run(smaller, first, second)) == {"first": 3}


def test_a_request_that_found_free_places_leaves_others_their_nodes() -> None:
    """Its nodes do not come. Those of later gangs have other names than the ones that come."""
    fits = gang("fits", gpus=8, pool="h100")
    needy = [gang(f"g{index}", gpus=8, pool="a100", at=1.0 + index) for index in range(2)]
    asked = tuple(
        AskedNodes(uid=each.uid, pool=each.pool or "", nodes=1) for each in (fits, needy[0])
    )
    offers = tuple(
        NodeOffer(node=node("new", gpus=8, pool=pool), pool_limit=9) for pool in ("h100", "a100")
    )
    there = growing(node("n0", gpus=8), offers=offers, pools=("h100", "a100"))
    decisions = run(replace(there, asked=asked), fits, *needy)
    assert [each.key for each in decisions.placed] == ["training/fits"]
    assert needs(decisions) == {"g0": 1, "g1": 1}


def test_what_is_being_set_up_for_nobody_counts_towards_the_limit() -> None:
    nodes = [node(f"n{number}", gpus=8, starting=True) for number in range(3)]
    snapshot = growing(*nodes, offers=(offer(limit=4),))
    assert needs(run(snapshot, gang("two", nodes=2, gpus=8))) == {}
    assert needs(run(snapshot, gang("single", nodes=1, gpus=8))) == {"single": 1}


def test_small_jobs_fill_nodes_that_are_partly_used_and_leave_whole_ones_to_the_autoscaler() -> (
    None
):
    half = [admitted(gang(f"half-{name}", gpus=4), name) for name in ("n1", "n2")]
    nodes = [node(f"n{number}", gpus=8) for number in range(4)]
    snapshot = growing(*nodes, offers=(offer(),), running=half)
    small = [gang(f"small-{number}", gpus=4, at=float(number)) for number in range(2)]
    decisions = run(snapshot, *small)
    assert {placed.assignment for placed in decisions.placed} == {("n1",), ("n2",)}


def test_all_nodes_of_a_gang_are_asked_for_in_one_zone() -> None:
    """What is free elsewhere is no part of it: its placeholder would go to that zone too."""
    new = node("new", gpus=8, labels={ZONE_LABEL: "b"})
    zone = NodeOffer(node=new, zone="b", pool_limit=100)
    left = node("left", gpus=8, labels={ZONE_LABEL: "a"})
    near = node("near", gpus=8, labels={ZONE_LABEL: "b"})
    (need,) = run(growing(left, near, offers=(zone,)), gang("big", nodes=3, gpus=8)).needs_nodes
    assert (need.nodes, len(need.shares)) == (2, 3)


def test_why_a_pool_is_not_asked_for_more_is_said_with_the_reason() -> None:
    four = gang("four", nodes=4, gpus=8)
    small = growing(node("n0", gpus=8), offers=(offer(limit=3),))
    (blocked,) = run(small, four).blocked
    assert not missing(blocked.message, "pool h100", "3 nodes", "maxNodes")
    lately = offer(limit=9, new_limit=3, limited_until=3_600.0, limited_why="no capacity")
    (blocked,) = run(growing(offers=(lately,)), four).blocked
    assert not missing(blocked.message, "pool h100", "4 nodes", "01:00:00", "UTC")
    elsewhere = replace(offer(limit=9), zone="b")
    (blocked,) = run(growing(offers=(replace(lately, zone="a"), elsewhere)), four).blocked
    assert blocked.reason is BlockReason.WAITING_FOR_NODES
    assert "lately" not in blocked.message


@pytest.mark.parametrize(
    ("free", "is_asked", "grows"),
    [
        (1, False, 0),  # too big for the cluster: it counts on that node, and asks for two
        (1, True, 0),
        (2, False, 0),
        (3, False, 0),  # starts
        (4, False, 1),
        (4, True, 1),
    ],
)
def test_no_elastic_gang_grows_into_the_nodes_of_one_that_waits_for_more(
    free: int, is_asked: bool, grows: int
) -> None:
    elastic = admitted(gang("elastic", nodes=4, gpus=8, sizes=(1, 2, 3, 4)), "n0")
    waits = gang("waits", nodes=3, gpus=8, at=1.0)
    asked = (AskedNodes(uid=waits.uid, pool="h100", zone="", nodes=2),) if is_asked else ()
    nodes = [node(f"n{i}", "r", gpus=8) for i in range(1 + free)]
    snapshot = replace(growing(*nodes, offers=(offer("r"),), running=[elastic]), asked=asked)
    decisions = run(snapshot, waits)
    assert sum(len(each.added) for each in decisions.resized) == grows
    assert needs(decisions) == ({"waits": 3 - free} if free < 3 else {})


def test_what_waits_for_no_nodes_keeps_nobody_from_growing_nor_from_repair() -> None:
    elastic = gang("elastic", nodes=4, gpus=8, sizes=(1, 2, 3, 4))
    nodes = [node(f"n{i}", "r", gpus=8) for i in range(2)]
    too_big = gang("waits", nodes=9, gpus=8, at=1.0)
    small = growing(*nodes, offers=(offer("r", limit=4),), running=[admitted(elastic, "n0")])
    assert [each.added for each in run(small, too_big).resized] == [("n1",)]
    broken = admitted(elastic, "n0", "gone", lost=frozenset({1}))
    large = growing(nodes[0], offers=(offer("r"),), running=[broken])
    decisions = run(large, too_big)
    assert needs(decisions) == {"waits": 9}
    assert [each.kept for each in decisions.resized] == [(0,)]


def test_a_broken_gang_that_does_not_get_its_promised_place_asks_in_the_next_cycle() -> None:
    """Until then it has the place, so it is not tried as a broken one."""
    broken = admitted(gang("broken", nodes=2, gpus=8), "n0", "gone", lost=frozenset({1}))
    nodes = [node(f"n{i}", gpus=8) for i in range(2)]
    snapshot = growing(*nodes, offers=(offer(),), running=(broken,))
    kept = replace(snapshot, admitted=(replace(broken, nominated={1: "n1"}),))
    answer = Blocked(
        key=broken.gang.key,
        uid=broken.gang.uid,
        reason=BlockReason.INSUFFICIENT_GPUS,
        message="no room",
    )
    decisions = with_node_needs(
        Decisions(blocked=(answer,)),
        cycle=CycleInput(snapshot=snapshot, pending=(), policy=Policy(), now=0.0),
        promises=Promised(snapshot=kept, pending=()),
        decide=decide,
        nodes=OfferedNodes(),
        has_quota=lambda _gang, _pool, _size: True,
    )
    assert decisions.needs_nodes == ()
    assert reasons(decisions) == {"broken": BlockReason.INSUFFICIENT_GPUS}
