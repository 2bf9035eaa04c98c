"""The life of what autoscalers are asked for, moment by moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from drumline_scheduler import AskedNodes, NeedsNodes, NodeOffer
from drumline_scheduler.autoscaling.node_demands import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    NO_MESSAGES,
    STARTED_SECONDS,
    DemandEnd,
    DemandsAfter,
    NodeBackoff,
    NodeDemands,
    demands_after,
)
from tests.unit.scheduler.builders import node, pod

TIMEOUTS = {"h100": 600.0}
EMPTY = NodeDemands()


def need(name: str = "a", *, nodes: int = 4, zone: str = "", of: int = 0) -> NeedsNodes:
    """Of a pool that has `of` nodes, those that others asked for counted."""
    return NeedsNodes(
        key=f"training/{name}",
        uid=f"uid-{name}",
        pool="h100",
        zone=zone,
        nodes=nodes,
        pool_nodes=of + nodes,
        shares=(pod(8),) * nodes,
    )


def step(
    before: NodeDemands,
    *needs: NeedsNodes,
    now: float,
    started: Collection[str] = (),
    held_back: Collection[str] = (),
    refused: Collection[str] = (),
    messages: Mapping[str, str] = NO_MESSAGES,
    bound: Collection[str] = (),
) -> DemandsAfter:
    return demands_after(
        before,
        needs=needs,
        started=started,
        held_back=held_back,
        refused=refused,
        messages=messages,
        bound=bound,
        timeouts=TIMEOUTS,
        now=now,
    )


def ends(after: DemandsAfter) -> list[tuple[str, DemandEnd]]:
    return [(demand.uid, end) for demand, end in after.ended]


def test_a_need_is_asked_for_once_however_many_nodes_come_meanwhile() -> None:
    asked = step(EMPTY, need(nodes=4), now=0).demands
    later = step(asked, need(nodes=1), now=599)
    assert later.demands == asked
    assert later.ended == ()
    assert asked.asked == (AskedNodes(uid="uid-a", pool="h100", nodes=4),)


def test_a_demand_outlives_the_start_until_the_pods_are_there() -> None:
    asked = step(EMPTY, need(), now=0).demands
    starts = step(asked, now=30, started={"uid-a"})
    assert len(starts.demands.open) == 1
    assert starts.demands.asked == ()
    assert ends(step(starts.demands, now=31, bound={"uid-a"})) == [("uid-a", DemandEnd.STARTED)]
    never = step(starts.demands, now=30 + STARTED_SECONDS)
    assert ends(never) == [("uid-a", DemandEnd.STARTED)]


def test_a_start_that_is_held_back_is_no_start_and_needs_its_nodes() -> None:
    asked = step(EMPTY, need(), now=0).demands
    held = step(asked, now=30, held_back={"uid-a"})
    assert (held.demands, held.ended) == (asked, ())
    late = step(asked, now=600, held_back={"uid-a"})  # they are there: none is refused
    assert (late.demands, late.ended) == (asked, ())
    starts = step(held.demands, now=32, started={"uid-a"})
    assert [demand.started_at for demand in starts.demands.open] == [32]


def test_what_nobody_would_start_with_is_withdrawn_at_once_and_may_be_asked_again() -> None:
    asked = step(EMPTY, need(), now=0).demands
    over = step(asked, now=1)
    assert ends(over) == [("uid-a", DemandEnd.NOT_NEEDED)]
    assert over.demands == EMPTY


def test_after_the_timeout_the_pool_is_to_grow_as_far_in_this_zone_only_after_a_pause() -> None:
    asked = step(EMPTY, need(nodes=4, zone="a", of=2), now=0).demands
    messages = {"uid-a": "no capacity"}
    late = step(asked, need(nodes=2, zone="a", of=4), now=600, messages=messages)
    assert ends(late) == [("uid-a", DemandEnd.TIMED_OUT)]
    assert late.demands.open == ()
    offers = tuple(NodeOffer(node=node("new"), zone=zone, pool_limit=9) for zone in ("a", "b"))
    limited = late.demands.within(offers, now=601)
    assert [(offer.pool_limit, offer.new_limit) for offer in limited] == [(9, 5), (9, None)]
    until = 600 + FIRST_PAUSE_SECONDS
    assert (limited[0].limited_until, limited[0].limited_why) == (until, "no capacity")
    assert late.demands.within(offers, now=until) == offers
    assert late.demands.next_change(TIMEOUTS, now=601) == until


def test_a_refusal_ends_a_demand_at_once_as_its_timeout_would() -> None:
    asked = step(EMPTY, need(nodes=4, of=2), now=0).demands
    refused = step(asked, need(nodes=4, of=2), now=5, refused={"uid-a"})
    assert ends(refused) == [("uid-a", DemandEnd.REFUSED)]
    assert refused.demands == NodeDemands(
        backoffs=(
            NodeBackoff(
                pool="h100", zone="", pool_nodes=6, until=5 + FIRST_PAUSE_SECONDS, timeouts=1
            ),
        )
    )
    held = step(asked, now=5, refused={"uid-a"}, held_back={"uid-a"})  # its nodes are there
    assert (held.demands, held.ended) == (asked, ())


def test_pauses_double_up_to_the_longest_and_end_with_a_start() -> None:
    demands, now, pauses = EMPTY, 0.0, list[float]()
    for _ in range(1100):  # once an hour for six weeks
        demands = step(demands, need(), now=now).demands
        now += TIMEOUTS["h100"]
        demands = step(demands, need(), now=now).demands
        (backoff,) = demands.backoffs
        pauses.append(backoff.until - now)
        now = backoff.until
    assert pauses[:3] == [60.0, 120.0, 240.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    demands = step(demands, need(), now=now).demands
    demands = step(demands, now=now + 1, started={"uid-a"}).demands
    assert step(demands, now=now + 2, bound={"uid-a"}).demands == EMPTY


def test_two_demands_that_end_together_are_one_refusal_of_the_smaller() -> None:
    pair = need("a", nodes=8), need("b", nodes=3)
    asked = step(EMPTY, *pair, now=0).demands
    (backoff,) = step(asked, *pair, now=600).demands.backoffs
    assert (backoff.pool_nodes, backoff.timeouts) == (3, 1)


def test_a_gang_that_now_needs_another_pool_is_asked_for_anew() -> None:
    asked = step(EMPTY, need(zone="a"), now=0).demands
    moved = step(asked, need(zone="b"), now=5)
    assert ends(moved) == [("uid-a", DemandEnd.NOT_NEEDED)]
    again = step(moved.demands, need(zone="b"), now=6).demands
    assert [(each.zone, each.asked_at) for each in again.open] == [("b", 6)]
    assert replace(again, open=()) == EMPTY
