"""The example's trace on the example's cluster, under its policy and under plain queues.

A saturated made-up trace of 2,000 jobs (examples/simulation): what the policy is worth, and how
far expected starts are off on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drumline_simulator.comparison import BEST_EFFORT, CONFIGURED, STRICT, compared_policies
from drumline_simulator.engine.forecast_recorder import ForecastRecorder
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.input import cluster_file, trace
from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.results.statistics import Summary, summary
from tools.bench.report import Row

_EXAMPLE = Path(__file__).parents[3] / "examples" / "simulation"
_FORECAST_SECONDS = 6 * 3600.0
_SOURCE = "examples/simulation, 2,000 jobs on 256 GPUs, 1.15 times the work there is room for"


def rows() -> list[Row]:
    """The goals that a policy is held to, beside best-effort and strict FIFO on the same trace."""
    return list(_compared(summaries()))


def summaries() -> dict[str, Summary]:
    """The figures of each policy."""
    setup = cluster_file.parse((_EXAMPLE / "cluster.yaml").read_text(), file="cluster.yaml")
    with (_EXAMPLE / "trace.csv").open() as lines:
        jobs = list(trace.read(lines, file="trace.csv"))
    coming = to_arrivals(jobs, cluster=setup.cluster, default_queue="", file="trace.csv")
    results: dict[str, Summary] = {}
    for policy in compared_policies(setup):
        recorder = ForecastRecorder(every_seconds=_FORECAST_SECONDS)
        outcome = simulate(
            cluster=policy.setup.cluster,
            arrivals=coming,
            policy=policy.setup.policy,
            execution=policy.setup.execution,
            recorder=recorder if policy.name == CONFIGURED else None,
        )
        results[policy.name] = summary(outcome)
    return results


def _compared(item: dict[str, Summary]) -> Iterator[Row]:
    ours, best_effort, strict = item[CONFIGURED], item[BEST_EFFORT], item[STRICT]
    waits = 100 * ours.mean_wait_seconds / best_effort.mean_wait_seconds
    largest = 100 * ours.largest_p95_wait_seconds / best_effort.largest_p95_wait_seconds
    points = 100 * (ours.utilisation - strict.utilisation)
    yield Row(
        name="simulated: mean wait beside best-effort FIFO",
        value=waits,
        unit="%",
        goal="<= 70 %",
        met=waits <= 70,
        source=_SOURCE,
    )
    yield Row(
        name="simulated: p95 wait of the largest tenth beside best-effort FIFO",
        value=largest,
        unit="%",
        goal="<= 25 %",
        met=largest <= 25,
        source=_SOURCE,
    )
    yield Row(
        name="simulated: utilisation above strict FIFO",
        value=points,
        unit="points",
        goal=">= 10 points",
        met=points >= 10,
        source=_SOURCE,
    )
    starts = ours.starts
    if starts is None or starts.median_error is None or starts.by_p90 is None:
        return
    error, covered = 100 * starts.median_error, 100 * starts.by_p90
    yield Row(
        name="simulated: median error of expected starts, limits 1 to 3 times the truth",
        value=error,
        unit="%",
        goal="<= 25 %",
        met=error <= 25,
        source=_SOURCE,
    )
    yield Row(
        name="simulated: starts at or before the p90 of their forecast",
        value=covered,
        unit="%",
        goal="80 to 95 %",
        met=80 <= covered <= 95,
        source=_SOURCE,
    )
    yield Row(
        name="simulated: forecasts of jobs that started, without a band",
        value=100 * starts.without_p90 / starts.forecasts,
        unit="%",
        goal="",
        met=None,
        source=_SOURCE,
    )
