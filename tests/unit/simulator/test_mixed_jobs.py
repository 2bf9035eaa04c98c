"""Jobs of which the smallest size runs on nodes that stay, and the rest on spot nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import (
    CapacityType,
    CycleInput,
    Decisions,
    Node,
    Policy,
    Pool,
    PreemptionRule,
    Queue,
    WithinQueue,
    decide,
)
from drumline_scheduler.model import PriceRule, SpotRule
from drumline_scheduler.resources import Resources
from drumline_simulator.cluster import Cluster, PoolTerms
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.input import cluster_file
from drumline_simulator.results.cost import HourlyPrices
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.workload import Arrival, Execution, Outage
from tests.unit.simulator.clusters import PROMPT, a_job

SURPLUS = PriceRule(spot=SpotRule.SURPLUS)
NOMINAL = {"h100": 32, "spot": 32}
RULE = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY)
SAVING = Execution(save_seconds=10, checkpoint_seconds=1000, restart_seconds=5)
BOTH = ("h0", "h1", "s0", "s1")


def a_world(*, staying: int = 2, spot_nodes: int = 2, queue: Queue | None = None) -> Cluster:
    """Nodes that stay, of 8 GPUs each, beside spot nodes at half of their price."""
    whole = Resources(gpus=8, pods=110)
    nodes = [Node(name=f"h{i}", pool="h100", allocatable=whole) for i in range(staying)]
    nodes += [Node(name=f"s{i}", pool="spot", allocatable=whole) for i in range(spot_nodes)]
    return Cluster(
        nodes=tuple(nodes),
        pools=(Pool(name="h100"), Pool(name="spot", capacity=CapacityType.SPOT)),
        queues=(queue or Queue(name="q", nominal=NOMINAL, price_rule=SURPLUS),),
        terms={
            "h100": PoolTerms(price_per_gpu_hour=2.0),
            "spot": PoolTerms(price_per_gpu_hour=1.0),
        },
    )


def elastic(name: str = "llama", **more: Any) -> Arrival:
    """Two to four pods of a node each: 400 seconds with all of them."""
    fields: dict[str, Any] = {"seconds": 400, "nodes": 4, "sizes": (2, 3, 4), **more}
    return a_job(name, **fields)


def run(*jobs: Arrival, cluster: Cluster | None = None, **more: Any) -> Outcome:
    given: dict[str, Any] = {"policy": Policy(), "execution": PROMPT, **more}
    return simulate(cluster=cluster or a_world(), arrivals=jobs, **given)


def held(outcome: Outcome, *, job: int = 0) -> list[tuple[float, float, tuple[str, ...]]]:
    return [
        (each.begins_at, each.ends_at, each.nodes)
        for each in outcome.allocations
        if each.job == job
    ]


def test_both_parts_start_at_once_and_work_together() -> None:
    outcome = run(elastic())
    assert held(outcome) == [(0, 400, BOTH)]
    assert outcome.allocations[0].gpus == 32


def test_a_job_asks_for_it_where_its_queue_does_not() -> None:
    queue = Queue(name="q", nominal=NOMINAL, price_rule=PriceRule(spot=SpotRule.AVOID))
    outcome = run(elastic(price_rule=SURPLUS), cluster=a_world(queue=queue))
    assert held(outcome) == [(0, 400, BOTH)]


def test_a_job_that_cannot_be_split_uses_no_spot_node() -> None:
    outcome = run(elastic(pool="h100"), cluster=a_world(staying=4))
    assert held(outcome) == [(0, 400, ("h0", "h1", "h2", "h3"))]


def test_each_part_is_paid_in_its_pool() -> None:
    cluster = a_world()
    outcome = run(elastic(seconds=3600), cluster=cluster)
    dollars = HourlyPrices(cluster.terms, seed=1).cost(outcome.leases)
    assert dollars == 16 * 2.0 + 16 * 1.0


def reclaims(*, notice: float, at: float = 100, seconds: float = 200) -> list[Outage]:
    return [Outage(node=f"s{i}", at=at, seconds=seconds, notice_seconds=notice) for i in range(2)]


def test_a_reclaim_of_all_spot_nodes_leaves_the_smallest_size_and_the_surplus_returns() -> None:
    outcome = run(elastic(), execution=SAVING, outages=reclaims(notice=60))
    assert held(outcome) == [
        (0, 100, BOTH),
        (100, 300, ("h0", "h1")),
        # 100 of 400 seconds were done at 100, as it saves within the notice, and 97.5 since 105.
        # 90 of 400 seconds were done at 100, as it saved for the last 10, and 97.5 since 105.
        (300, 300 + 5 + 212.5, BOTH),
    ]
    assert outcome.jobs[0].lost_gpu_seconds == 0
    assert outcome.resized == 2


def test_without_a_notice_the_job_goes_on_from_its_last_checkpoint() -> None:
    outcome = run(elastic(), outages=reclaims(notice=0, at=150, seconds=10_000))
    assert held(outcome) == [(0, 150, BOTH), (150, 750, ("h0", "h1"))]
    assert outcome.jobs[0].lost_gpu_seconds == 50 * 32


def test_surplus_moves_to_other_spot_nodes_before_its_own_go() -> None:
    cluster = a_world(spot_nodes=3)
    notice = Outage(node="s0", at=160, seconds=1000, notice_seconds=60)
    outcome = run(elastic(), cluster=cluster, execution=SAVING, outages=[notice])
    assert held(outcome) == [(0, 100, BOTH), (100, 415, ("h0", "h1", "s2", "s1"))]


def test_surplus_does_not_stand_in_for_a_lost_node_of_the_smallest_size() -> None:
    patient = replace(PROMPT, broken_seconds=50)
    lost = Outage(node="h0", at=100, seconds=200)
    outcome = run(elastic(), execution=patient, outages=[lost])
    assert held(outcome) == [(0, 150, BOTH), (300, 600, BOTH)]
    assert outcome.jobs[0].account.idle == 50 * 32


@pytest.mark.parametrize("policy", [Policy(), Policy(surplus=True)], ids=["whole", "in part"])
def test_another_job_takes_the_surplus_alone(policy: Policy) -> None:
    outcome = run(
        elastic(price_rule=SURPLUS),
        spot_job(nodes=1),
        cluster=a_world(queue=preempting()),
        execution=SAVING,
        policy=policy,
    )
    kept, node = (("h0", "h1", "s0"), "s1") if policy.surplus else (("h0", "h1"), "s0")
    assert held(outcome)[1][::2] == (110, kept)
    assert held(outcome, job=1) == [(110, 160, (node,))]
    assert [each.victims for each in outcome.evictions] == [("team/llama",)]
    assert held(outcome)[-1][2][:2] == ("h0", "h1")
    assert len(held(outcome)[-1][2]) == 4
    assert outcome.jobs[0].lost_gpu_seconds == 0


def test_the_surplus_leaves_with_the_smallest_size() -> None:
    queue = Queue(name="q", nominal=NOMINAL, price_rule=SURPLUS, preemption=RULE)
    high = a_job("high", nodes=2, at=100, seconds=50, priority=1)
    cluster = a_world(queue=queue)
    outcome = run(elastic(), high, cluster=cluster, execution=SAVING)
    assert held(outcome) == [(0, 110, BOTH), (160, 160 + 5 + 300, BOTH)]
    assert held(outcome, job=1) == [(110, 160, ("h0", "h1"))]


def spot_job(*, nodes: int = 2) -> Arrival:
    return a_job("high", nodes=nodes, at=100, seconds=50, priority=1, pools=("spot",))


def preempting() -> Queue:
    return Queue(name="q", nominal=NOMINAL, preemption=RULE)


def test_who_takes_the_smallest_size_while_the_surplus_leaves_takes_all_that_is_left() -> None:
    second = a_job("higher", nodes=2, at=105, seconds=50, priority=2, pools=("h100",))
    outcome = run(
        elastic(price_rule=SURPLUS),
        spot_job(),
        second,
        cluster=a_world(queue=preempting()),
        execution=SAVING,
    )
    assert held(outcome)[0] == (0, 115, BOTH)
    assert held(outcome, job=1) == [(115, 165, ("s0", "s1"))]
    assert held(outcome, job=2) == [(115, 165, ("h0", "h1"))]


def test_two_jobs_take_both_parts_in_one_cycle() -> None:
    second = a_job("higher", nodes=2, at=100, seconds=50, priority=2, pools=("h100",))
    outcome = run(
        elastic(price_rule=SURPLUS),
        spot_job(),
        second,
        cluster=a_world(queue=preempting()),
        execution=SAVING,
    )
    assert held(outcome)[0] == (0, 110, BOTH)
    assert outcome.jobs[0].preempted == 1
    starts = {job.uid: job.started_at for job in outcome.jobs}
    assert starts == {"llama": 0, "high": 110, "higher": 110}


def test_each_part_counts_in_the_usage_of_its_pool() -> None:
    known: list[float] = []

    def watched(cycle: CycleInput) -> Decisions:
        known.append(cycle.snapshot.history.get("q", 0.0))
        return decide(cycle)

    run(elastic(), a_job("later", at=100), decider=watched)
    assert 0 < known[1] <= 100  # all of h100 and of spot: one whole share, for 100 seconds


def test_the_smallest_size_moves_while_the_surplus_leaves() -> None:
    notice = Outage(node="h0", at=165, seconds=1000, notice_seconds=60)
    outcome = run(
        elastic(price_rule=SURPLUS),
        spot_job(),
        cluster=a_world(staying=3, queue=preempting()),
        execution=SAVING,
        outages=[notice],
    )
    moved = ("h2", "h1", "s0", "s1")
    assert held(outcome)[:3] == [(0, 105, BOTH), (105, 115, moved), (115, 165, moved[:2])]
    assert held(outcome, job=1) == [(115, 165, ("s0", "s1"))]


def test_a_repair_of_the_smallest_size_leaves_it_announced_that_a_spot_node_goes() -> None:
    outages = [
        Outage(node="s2", at=0, seconds=120),
        Outage(node="s0", at=150, seconds=1000, notice_seconds=60),
        Outage(node="h0", at=100, seconds=1000),
    ]
    cluster = a_world(staying=3, spot_nodes=3)
    outcome = run(elastic(), cluster=cluster, execution=SAVING, outages=outages)
    assert [(begins, nodes) for begins, _, nodes in held(outcome)] == [
        (0, BOTH),
        (100, ("h2", "h1", "s0", "s1")),
        (120, ("h2", "h1", "s2", "s1")),
    ]


FILE = """
pools:
  - name: h100
    nodes: [{count: 2, gpus: 8}]
  - name: spot
    spot: {nodeHours: 24}
    nodes: [{count: 2, gpus: 8}]
queues:
  - {name: q, quota: {h100: 16, spot: 16}, spot: RULE}
"""


@pytest.mark.parametrize(
    ("rule", "nodes"), [("Surplus", {"h100": 2, "spot": 2}), ("Never", {"h100": 2})]
)
def test_a_queue_of_a_cluster_file_has_a_rule_about_spot(
    rule: str, nodes: Mapping[str, int]
) -> None:
    setup = cluster_file.parse(FILE.replace("RULE", rule), file="cluster.yaml")
    outcome = run(elastic(), cluster=setup.cluster)
    pools = [name.rpartition("-")[0] for name in outcome.allocations[0].nodes]
    assert {pool: pools.count(pool) for pool in pools} == nodes
