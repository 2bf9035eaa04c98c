from __future__ import annotations

import re
from pathlib import Path

import pytest

from drumline_scheduler import (
    MoveBudget,
    Node,
    Ordering,
    Policy,
    Pool,
    PreemptionLimit,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    WaitingRule,
    WithinQueue,
)
from drumline_simulator.cluster import Autoscaling, PoolTerms
from drumline_simulator.conditions.rates import FailureRates, SpotRates
from drumline_simulator.input.cluster_file import parse
from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.workload import Execution, Outage

SMALL = """\
pools:
  - name: h100
    nodes: [{count: 1, gpus: 8}]
queues:
  - {name: q, quota: {h100: 8}}
"""
FULL = """\
pools:
  - name: h100
    levels: [block, rack]
    nodes:
      - {count: 3, gpus: 8, domainNodes: {block: 4, rack: 2}}
      - {count: 1, gpus: 4}
queues:
  - name: org
  - name: q
    parent: org
    quota: {h100: 8}
    borrowingLimit: {h100: 2}
    lendingLimit: {h100: 1}
    userLimit: {h100: 4}
    weight: 2.5
    minRuntimeSeconds: 60
    preemption: {withinQueue: LowerPriority, reclaim: Any}
defaultQueue: q
policy:
  waiting: Backfill
  order: FairShare
  reservations: 4
  surplus: true
  preemptionLimit: {times: 2, windowSeconds: 900}
  moves: {gangs: 2, gpuSeconds: 100}
execution:
  {saveSeconds: 1, leaveSeconds: 5, checkpointSeconds: 2, restartSeconds: 3, periodSeconds: 4}
outages:
  - {node: h100-0001, atSeconds: 5, seconds: 6}
"""


def test_the_smallest_file_has_a_default_for_everything_else() -> None:
    setup = parse(SMALL, file="c.yaml")
    assert (setup.policy, setup.execution, setup.outages) == (Policy(), Execution(), ())
    assert setup.default_queue == "q"
    assert setup.cluster.gpus == 8


def test_everything_a_file_can_say() -> None:
    setup = parse(FULL, file="c.yaml")
    domains = [("block-000", "rack-000")] * 2 + [("block-000", "rack-001"), ("", "")]
    assert setup.cluster.pools == (Pool(name="h100", levels=("block", "rack")),)
    assert setup.cluster.nodes == tuple(
        Node(
            name=f"h100-{i:04}",
            pool="h100",
            allocatable=Resources(gpus=8 if i < 3 else 4, pods=110),
            domains=domains[i],
        )
        for i in range(4)
    )
    assert setup.cluster.queues == (
        Queue(name="org", nominal={}),
        Queue(
            name="q",
            nominal={"h100": 8},
            parent="org",
            borrowing_limit={"h100": 2},
            lending_limit={"h100": 1},
            user_limit={"h100": 4},
            weight=2.5,
            min_runtime_seconds=60,
            preemption=PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY),
        ),
    )
    assert setup.policy == Policy(
        waiting=WaitingRule.BACKFILL,
        order=Ordering.FAIR_SHARE,
        reservations=4,
        surplus=True,
        preemption_limit=PreemptionLimit(times=2, seconds=900),
        moves=MoveBudget(gangs=2, gpu_seconds=100),
    )
    assert setup.execution == Execution(
        save_seconds=1,
        leave_seconds=5,
        checkpoint_seconds=2,
        restart_seconds=3,
        period_seconds=4,
    )
    assert setup.outages == (Outage(node="h100-0001", at=5, seconds=6),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("userLimit:", "userLimits:", "c.yaml, line 14, field queues[1].userLimits: unknown field"),
        ("count: 3", "count: 0", "c.yaml, line 5, field pools[0].nodes[0].count: must be at le"),
        ("count: 3", "count: '3'", "c.yaml, line 5, field pools[0].nodes[0].count: must be a n"),
        ("count: 3", "count: 0x10", "c.yaml, line 5, field pools[0].nodes[0].count: must be a d"),
        (
            "weight: 2.5",
            "weight: .inf",
            "c.yaml, line 15, field queues[1].weight: must be a decimal",
        ),
        ("count: 3", "count: 1.5", "c.yaml, line 5, field pools[0].nodes[0].count: must be a w"),
        ("rack: 2", "row: 2", "c.yaml, line 5, field pools[0].nodes[0].domainNodes: pool h100"),
        ("rack: 2", "rack: 0", "c.yaml, line 5, field pools[0].nodes[0].domainNodes: a rack mu"),
        ("quota: {h100: 8}", "quota: {a100: 8}", "c.yaml, line 11, field queues[1].quota: pool"),
        ("quota: {h100: 8}", "quota: 8", "c.yaml, line 11, field queues[1].quota: must be numb"),
        ("weight: 2.5", "weight: 0", "c.yaml, line 15, field queues[1].weight: must be above 0"),
        ("reclaim: Any", "reclaim: any", "c.yaml, line 17, field queues[1].preemption.reclaim:"),
        ("defaultQueue: q", "defaultQueue: r", "c.yaml, line 18, field defaultQueue: queue r does"),
        ("surplus: true", "surplus: 1", "c.yaml, line 23, field policy.surplus: must be true or"),
        ("moves: {gangs: 2, gpuSeconds: 100}", "moves: 1", "c.yaml, line 25, field policy.moves"),
        ("checkpointSeconds: 2", "checkpointSeconds: 0", "c.yaml, line 27, field execution.che"),
        ("node: h100-0001", "node: x", "c.yaml, line 29, field outages[0].node: node x does"),
        ("name: org", "nam: org", "c.yaml, line 8, field queues[0].name: is missing"),
        ("parent: org", "name: org", "c.yaml, line 10, field queues[1].name: is given twice"),
        ("defaultQueue: q", "defaultQueue: q: r", "c.yaml, line 18: no YAML"),
    ],
)
def test_errors_name_the_line_and_the_field(old: str, new: str, message: str) -> None:
    assert FULL.count(old) == 1
    with pytest.raises(InvalidFileError) as caught:
        parse(FULL.replace(old, new), file="c.yaml")
    assert str(caught.value).startswith(message)


def test_a_file_that_is_something_else_is_refused() -> None:
    with pytest.raises(InvalidFileError, match=r"c\.yaml.*line 1"):
        parse("- a\n", file="c.yaml")
    with pytest.raises(InvalidFileError, match=r"c\.yaml.*line 1"):
        parse("queues: []\n", file="c.yaml")


def test_the_file_in_the_documentation_has_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()
    (block,) = re.findall(r"^```yml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    parse(block, file="docs")
    fields = set(re.findall(r"(\w+):", FULL + block))
    assert fields <= set(re.findall(r"(\w+):", block))


CONDITIONS = """\
pools:
  - name: p
    pricePerGpuHour: 3.5
    priceSwing: 0.2
    spot: {nodeHours: 24, noticeSeconds: 30}
    autoscaling: {bootSeconds: 180, bootSpread: 0.4, missingShare: 0.1}
    nodes: [{count: 2, gpus: 8}]
queues:
  - {name: q, quota: {p: 16}}
failures: {gpuHours: 8000, processShare: 0.2, hangShare: 0.1}
execution:
  startSeconds: 5
  checkpointStallSeconds: 1
  snapshotSeconds: 60
  snapshotShare: 0.01
  processSeconds: 2
  hangSeconds: 15
  repairSeconds: 10
  brokenSeconds: 600
"""


def test_what_a_file_says_of_failures_prices_and_recoveries() -> None:
    setup = parse(CONDITIONS, file="c.yaml")
    assert setup.cluster.terms["p"] == PoolTerms(
        price_per_gpu_hour=3.5,
        price_swing=0.2,
        autoscaling=Autoscaling(boot_seconds=180, boot_spread=0.4, missing_share=0.1),
    )
    assert setup.spot == {"p": SpotRates(node_hours=24, notice_seconds=30)}
    assert setup.failures == FailureRates(gpu_hours=8000, process_share=0.2, hang_share=0.1)
    assert setup.execution == Execution(
        start_seconds=5,
        checkpoint_stall_seconds=1,
        snapshot_seconds=60,
        snapshot_share=0.01,
        process_seconds=2,
        hang_seconds=15,
        repair_seconds=10,
        broken_seconds=600,
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nodeHours: 24", "nodeHours: 0", "field pools[0].spot.nodeHours: must be at least"),
        ("priceSwing: 0.2", "priceSwing: 1", "field pools[0].priceSwing: must be below 1"),
        ("hangShare: 0.1", "hangShare: 0.9", "field failures.hangShare: the sum of hangShare"),
        ("gpuHours: 8000", "gpuHour: 8000", "field failures.gpuHours: is missing"),
        ("bootSeconds: 180", "bootSeconds: x", "field pools[0].autoscaling.bootSeconds: must be"),
    ],
)
def test_impossible_conditions_name_their_field(old: str, new: str, message: str) -> None:
    with pytest.raises(InvalidFileError) as raised:
        parse(CONDITIONS.replace(old, new), file="c.yaml")
    assert message in str(raised.value)
