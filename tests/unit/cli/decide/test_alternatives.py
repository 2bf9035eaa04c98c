"""What a waiting job could do instead, each with its price, and that it would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_cli.decide.alternatives import Alternative, AlternativeKind, alternatives
from drumline_cli.decide.alternatives_text import alternatives_text
from drumline_cli.decide.job_decisions import JobDecision, JobVerdict
from drumline_scheduler import CycleInput, Gang, NodeOffer, Policy, Pool, Queue, Snapshot, decide
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.model import CapacityType, PriceRule, SpotRule
from tests.texts import Golden
from tests.unit.scheduler.builders import PREEMPTS, admitted, cluster, gang, node

DEMAND = Pool(name="h100", levels=("rack",), price=2_500_000)
SPOT = Pool(name="spot", levels=("rack",), capacity=CapacityType.SPOT, price=900_000)
RESEARCH = Queue(
    name="research", nominal={"h100": 99, "spot": 99}, max_priority=10, preemption=PREEMPTS
)
HELD = admitted(gang("held", gpus=8), "n0", gpu_seconds_at_risk=14_400.0)
BIG = gang("big", nodes=3, gpus=8)
Kinds = dict[AlternativeKind, Alternative]


def site(
    *offers: NodeOffer, queue: Queue = RESEARCH, pools: tuple[Pool, ...] = (DEMAND, SPOT)
) -> Snapshot:
    """Three nodes of 8 GPUs, of which another job holds one; a spot pool without nodes."""
    nodes = [node(f"n{number}", "r0", gpus=8) for number in range(3)]
    snapshot = cluster(*nodes, queues=(queue,), running=[HELD])
    return replace(snapshot, pools=pools, offers=offers)


def offer(pool: str, limit: int = 10) -> NodeOffer:
    return NodeOffer(node=node("new", "r0", gpus=8, pool=pool), pool_limit=limit)


def of(snapshot: Snapshot, *pending: Gang, starts_at: float | None = 3600.0) -> Kinds:
    """The alternatives of the first gang."""
    cycle = CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=0.0)
    decisions = decide(cycle)
    first = pending[0]
    start = ExpectedStart(key=first.key, uid=first.uid, p50_at=starts_at, p90_at=None)
    choices = alternatives(cycle, decisions=decisions, starts={first.uid: start})
    return {each.kind: each for each in choices.get(first.uid, ())}


def test_each_alternative_has_its_price() -> None:
    choices = of(site(offer("spot")), BIG)
    assert choices[AlternativeKind.WAIT] == Alternative(
        kind=AlternativeKind.WAIT,
        pool="spot",  # for which the autoscaler is asked
        pods=3,
        gpus=24,
        starts_at=3600.0,
        cost_per_hour="21.60",
    )
    assert choices[AlternativeKind.SHRINK] == Alternative(
        kind=AlternativeKind.SHRINK, pool="h100", pods=2, gpus=16, cost_per_hour="40.00"
    )
    preempt = choices[AlternativeKind.PREEMPT]
    assert (preempt.victims, preempt.cost_per_hour) == (("training/held",), "60.00")
    assert preempt.gpu_seconds_lost == 14_400 + 8 * 60
    assert preempt.cost_once == "10.333333"
    assert choices[AlternativeKind.BUY] == Alternative(
        kind=AlternativeKind.BUY, pool="spot", pods=3, gpus=24, nodes=3, cost_per_hour="21.60"
    )


def test_alternatives_on_parts_are_said_and_priced_in_gpus() -> None:
    mixed = site(offer("h100"))
    pools = tuple(replace(pool, parts_per_gpu=8) for pool in mixed.pools)
    choices = of(replace(mixed, pools=pools), BIG)
    whole = of(mixed, BIG)
    for kind, part in choices.items():
        assert part.gpus == whole[kind].gpus
        if part.cost_per_hour and part.pool == whole[kind].pool:
            assert float(part.cost_per_hour) * 8 == pytest.approx(float(whole[kind].cost_per_hour))
    preempt = choices[AlternativeKind.PREEMPT]
    assert preempt.gpu_seconds_lost == 14_400 + 8 / 8 * 60
    assert preempt.parts_per_gpu == 8


def test_bought_nodes_complete_those_that_are_free_and_are_paid_whole() -> None:
    small = replace(gang("small", nodes=5, gpus=4), price_rule=PriceRule(spot=SpotRule.NEVER))
    bought = of(site(offer("h100")), small)[AlternativeKind.BUY]
    assert (bought.nodes, bought.gpus, bought.cost_per_hour) == (1, 20, "20.00")


def test_nothing_is_bought_above_the_limit_of_a_pool_or_where_the_job_may_not_run() -> None:
    assert AlternativeKind.BUY not in of(site(offer("h100", limit=3)), BIG)
    never = replace(BIG, price_rule=PriceRule(spot=SpotRule.NEVER))
    assert AlternativeKind.BUY not in of(site(offer("spot")), never)


def test_a_job_is_not_told_to_preempt_what_its_queue_does_not_allow() -> None:
    assert AlternativeKind.PREEMPT not in of(site(queue=replace(RESEARCH, max_priority=0)), BIG)


def test_a_smaller_size_leaves_what_this_cycle_gives_to_others() -> None:
    first = gang("first", nodes=2, gpus=8, priority=5)
    assert AlternativeKind.SHRINK not in of(site(), BIG, first)


def test_without_a_forecast_nobody_says_how_long_it_waits() -> None:
    assert AlternativeKind.WAIT not in of(site(), BIG, starts_at=None)


def test_without_prices_there_is_nothing_to_compare() -> None:
    assert of(site(pools=(replace(DEMAND, price=None), replace(SPOT, price=None))), BIG) == {}


def test_people_read_a_line_for_each(golden: Golden) -> None:
    choices = of(site(offer("spot")), BIG)
    row = JobDecision(
        job="training/big",
        uid="uid-big",
        queue="research",
        pods=3,
        gpus=24,
        verdict=JobVerdict.WAITS,
        alternatives=tuple(choices.values()),
    )
    golden("alternatives.txt", alternatives_text([row], now=0.0))
