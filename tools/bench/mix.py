"""What the elastic mix costs beside all on-demand and all spot nodes, for a committed token.

`make bench WHAT=mix`: the elastic jobs of a trace like the simulated week's, on as many nodes of
each kind: all on-demand, all spot, and half of each with `spot: Surplus`. Failures, reclaims,
prices and recoveries are the simulated week's. All nodes are there all the time, so what is paid
for is what jobs hold, at the price of each node's pool in that hour.
Nothing here is measured: it is computed on a virtual clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from drumline_scheduler import CapacityType, Node, Pool, Queue, Resources
from drumline_scheduler.model import PriceRule, SpotRule
from drumline_simulator.cluster import Cluster, PoolTerms
from drumline_simulator.conditions.node_faults import draw_node_faults
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.parameters import conditions
from drumline_simulator.results.cost import HourlyPrices
from drumline_simulator.results.leases import Lease
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.results.time_account import total
from drumline_simulator.week import sides
from drumline_simulator.week.setting import NODE_GPUS, Setting
from drumline_simulator.week.study import TOKENS_PER_GPU_SECOND
from drumline_simulator.week.trace import arrivals
from drumline_simulator.workload import Arrival
from tools.bench.report import Row, publish

NODES: Final = 24
SECONDS: Final = 3 * 86_400.0
STAYING: Final = "on-demand"
SPOT: Final = "spot"
MIXES: Final = {"all on-demand": NODES, "half, surplus on spot": NODES // 2, "all spot": 0}
"""How many of the nodes are on-demand."""
_TRACE_NODES: Final = 128
"""Of the setting whose trace is taken: a sixth of its work is in elastic jobs."""
_POD_SLOTS: Final = 110
_QUEUE: Final = "lab"
_SOURCE: Final = "simulated, docs/simulated-week.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of one mix."""

    dollars_per_million: float
    """Of what jobs held, for a million committed tokens."""
    tokens: float
    wait_hours: float
    lost_percent: float
    """Of what jobs held: work done again, and time without progress but for checkpoints."""


def main() -> None:
    """Simulate and publish."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.mix", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument(
        "--reclaims", type=float, default=1.0, metavar="X", help="X times as often as assumed"
    )
    chosen = parser.parse_args()
    publish(
        "mix",
        list(_rows(seeds=chosen.seeds, reclaims=chosen.reclaims)),
        command=f"--seeds {chosen.seeds} --reclaims {chosen.reclaims:g}",
    )


def _rows(*, seeds: int, reclaims: float) -> Iterator[Row]:
    by_mix = {
        mix: [figures(seed, staying=nodes, reclaims=reclaims) for seed in range(1, seeds + 1)]
        for mix, nodes in MIXES.items()
    }
    for mix, results in by_mix.items():
        costs = [each.dollars_per_million for each in results]
        yield _row(
            f"{mix}: a million tokens, mean of {seeds} seeds"
            f" ({min(costs):.4f} to {max(costs):.4f} $)",
            mean(costs),
            "$",
        )
        yield _row(f"{mix}: tokens", mean(each.tokens for each in results) / 1e9, "billion")
        yield _row(f"{mix}: mean wait", mean(each.wait_hours for each in results), "h")
        yield _row(
            f"{mix}: lost, idle and restarting", mean(each.lost_percent for each in results), "%"
        )


def _row(name: str, value: float, unit: str) -> Row:
    return Row(name=name, value=value, unit=unit, source=_SOURCE)


def figures(seed: int, *, staying: int, reclaims: float) -> Figures:
    """Simulate one mix.

    Args:
        seed: of trace, failures, reclaims and prices.
        staying: how many of the nodes are on-demand; the others are spot nodes.
        reclaims: how many times as often as assumed spot nodes are taken back.
    """
    setting, side = _cluster(staying), sides.ours()
    faults = draw_node_faults(
        setting,
        failures=conditions.failure_rates(),
        spot={SPOT: conditions.spot_rates(scale=reclaims)},
        seconds=SECONDS,
        seed=seed,
    )
    outcome = simulate(
        cluster=setting,
        arrivals=list(_elastic_jobs(seed)),
        policy=side.policy,
        execution=side.execution,
        outages=faults.outages,
        faults=faults.faults,
        seed=seed,
        until=SECONDS,
        decider=side.decider,
    )
    tokens = TOKENS_PER_GPU_SECOND * sum(job.committed_seconds * job.gpus for job in outcome.jobs)
    account = total(job.account for job in outcome.jobs)
    dollars = HourlyPrices(setting.terms, seed=seed).cost(_held(outcome, setting))
    return Figures(
        dollars_per_million=1e6 * dollars / tokens,
        tokens=tokens,
        wait_hours=mean(job.waited_seconds(outcome.ended_at) for job in outcome.jobs) / 3600,
        lost_percent=100 * (account.lost + account.idle + account.restarting) / account.held,
    )


def _elastic_jobs(seed: int) -> Iterator[Arrival]:
    trace = arrivals(Setting(nodes=_TRACE_NODES, reserved_nodes=32, seconds=SECONDS, seed=seed))
    for job in trace:
        if job.gang.sizes:
            yield replace(job, gang=replace(job.gang, queue=_QUEUE))


def _cluster(staying: int) -> Cluster:
    counts = {STAYING: staying, SPOT: NODES - staying}
    whole = Resources(gpus=NODE_GPUS, pods=_POD_SLOTS)
    rule = PriceRule(spot=SpotRule.SURPLUS) if all(counts.values()) else PriceRule()
    queue = Queue(
        name=_QUEUE,
        nominal={pool: count * NODE_GPUS for pool, count in counts.items()},
        price_rule=rule,
    )
    return Cluster(
        nodes=tuple(
            Node(name=f"{pool}-{number:03}", pool=pool, allocatable=whole)
            for pool, count in counts.items()
            for number in range(count)
        ),
        pools=(Pool(name=STAYING), Pool(name=SPOT, capacity=CapacityType.SPOT)),
        queues=(queue,),
        terms={
            STAYING: PoolTerms(price_per_gpu_hour=conditions.PRICE.figure.value),
            SPOT: PoolTerms(
                price_per_gpu_hour=conditions.SPOT_PRICE.figure.value,
                price_swing=conditions.PRICE_SWING,
            ),
        },
    )


def _held(outcome: Outcome, cluster: Cluster) -> Iterator[Lease]:
    """What jobs held, node by node; a pod is as large as a node here."""
    pools = {node.name: node.pool for node in cluster.nodes}
    for each in outcome.allocations:
        for name in each.nodes:
            yield Lease(
                node=name,
                pool=pools[name],
                gpus=each.gpus // len(each.nodes),
                begins_at=each.begins_at,
                ends_at=each.ends_at,
            )


if __name__ == "__main__":
    main()
