"""Compare the errors of expected starts on the example's trace with other forecasters.

`make bench WHAT=forecast_bound` prints three median errors. The first is that of the operator. The
second is that of a forecaster which knows every run time but no later job (`knowing`). The third is
a lower bound for all forecasters that do not know the later jobs.

For the bound, the trace is simulated many times up to a moment, each time with other later jobs.
Their submission times stay the same, and each one is a random job of the trace. The waits of the
jobs that are pending at the moment then differ. No single forecast is near all of them.

    future    1      2      3      4       5
    wait    600 s  660 s  900 s  2400 s  7200 s  -> within 25 %: 600 to 900 s with 720 s, 3 of 5

For an error e, the share of waits within e of the best forecast of each job is the most that a
forecaster reaches. It may know all run times, all later submission times, and this distribution.
The bound is the least e at which the share reaches a half. The best forecast is chosen after the
waits are known, and a wait beyond the horizon counts as forecast. So the bound can only be too low.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Final

from drumline_scheduler import CycleInput, decide
from drumline_scheduler.forecast.accuracy import calibration
from drumline_scheduler.forecast.cluster import ForecastCluster, promised
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.queueing.expected_ends import LEAST_SECONDS
from drumline_simulator.engine.forecast_recorder import ForecastRecorder
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.input import cluster_file, trace
from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.workload import Arrival
from tools.bench.report import Row, publish

_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "simulation"
HOUR_SECONDS: Final = 3600.0


def least_error(waits: Sequence[Sequence[float | None]]) -> float:
    """Return the least median error that any forecaster can have.

    Args:
        waits: of each job, the wait in every future; None: beyond the horizon.
    """
    low, high = 0.0, 8.0
    total = sum(map(len, waits))
    while high - low > 0.001:
        error = (low + high) / 2
        reached = sum(_most_within(each, error=error) for each in waits)
        low, high = (low, error) if 2 * reached >= total else (error, high)
    return high


def _most_within(waits: Sequence[float | None], *, error: float) -> int:
    """Return the most waits that one forecast p is near: |p - wait| <= error * wait."""
    known = sorted(wait for wait in waits if wait is not None)
    unknown = len(waits) - len(known)
    lowest = [wait * (1 - error) for wait in known]
    best = 0
    for number, wait in enumerate(known):  # p is the highest forecast that is near this wait
        best = max(best, bisect_right(lowest, wait * (1 + error)) - number)
    return best + unknown


def knowing(arrivals: Iterable[Arrival]) -> Callable[[CycleInput], Sequence[ExpectedStart]]:
    """Return a forecaster that knows the run time of each job, but no later job."""
    seconds = {job.gang.uid: job.duration_seconds for job in arrivals}

    def forecast(cycle: CycleInput) -> Sequence[ExpectedStart]:
        future = ForecastCluster(
            snapshot=promised(cycle.snapshot),
            pending=cycle.pending,
            now=cycle.now,
            length=lambda gang, ran, _: max(LEAST_SECONDS, seconds[gang.uid] - ran),
        )
        starts: dict[str, float] = {}
        while len(starts) < len(cycle.pending):
            decisions = decide(
                replace(cycle, snapshot=future.snapshot, pending=future.pending, now=future.now)
            )
            future.carry_out(decisions)
            for placed in decisions.placed:
                starts.setdefault(placed.uid, future.now)
            if not future.go_on(until=decisions.retry_at):
                break
        return [
            ExpectedStart(
                key=gang.key,
                uid=gang.uid,
                p50_at=starts.get(gang.uid),
                p90_at=starts.get(gang.uid),
            )
            for gang in cycle.pending
        ]

    return forecast


def waits_of(
    setup: cluster_file.Setup,
    arrivals: Sequence[Arrival],
    *,
    moment: float,
    futures: int,
    horizon: float,
    seed: int,
) -> list[list[float | None]]:
    """Return the waits of the jobs that are pending at a moment, in `futures` futures."""
    waits: dict[str, list[float | None]] = {}
    for number in range(futures):
        outcome = simulate(
            cluster=setup.cluster,
            arrivals=_with_other_future(arrivals, moment=moment, chance=Random(f"{seed}/{number}")),
            policy=setup.policy,
            execution=setup.execution,
            until=moment + horizon,
        )
        for job in outcome.jobs:
            starts = job.started_at
            if job.submitted_at <= moment and (starts is None or starts > moment):
                wait = None if starts is None else starts - moment
                waits.setdefault(job.uid, []).append(wait)
    return [each for each in waits.values() if len(each) == futures]


def _with_other_future(
    arrivals: Iterable[Arrival], *, moment: float, chance: Random
) -> list[Arrival]:
    known = list(arrivals)
    changed: list[Arrival] = []
    for job in known:
        if job.gang.queued_at > moment:
            other = chance.choice(known)
            gang = replace(
                other.gang, key=job.gang.key, uid=job.gang.uid, queued_at=job.gang.queued_at
            )
            job = replace(other, gang=gang)  # noqa: PLW2901 - the same moment, another job
        changed.append(job)
    return changed


def main() -> None:
    """Print the error of the operator, the error with known run times, and the bound."""
    parser = argparse.ArgumentParser(prog="forecast_bound", description=main.__doc__)
    parser.add_argument("--every-hours", type=float, default=6.0)
    parser.add_argument("--futures", type=int, default=16)
    parser.add_argument("--horizon-hours", type=float, default=36.0)
    parser.add_argument("--until-hours", type=float, default=inf, help="last moment of a forecast")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    setup = cluster_file.parse((_EXAMPLE / "cluster.yaml").read_text(), file="cluster.yaml")
    with (_EXAMPLE / "trace.csv").open() as lines:
        jobs = list(trace.read(lines, file="trace.csv"))
    arrivals = to_arrivals(jobs, cluster=setup.cluster, default_queue="", file="trace.csv")
    every = chosen.every_hours * HOUR_SECONDS
    rows = [
        _row(
            "the operator",
            median_error(setup, arrivals, every=every, forecaster=None),
            goal="<= 25 %",
        ),
        _row(
            "knows run times",
            median_error(setup, arrivals, every=every, forecaster=knowing(arrivals)),
        ),
    ]
    waits: list[list[float | None]] = []
    moment = every
    last = min(chosen.until_hours * HOUR_SECONDS, max(job.gang.queued_at for job in arrivals))
    while moment <= last:
        waits += waits_of(
            setup,
            arrivals,
            moment=moment,
            futures=chosen.futures,
            horizon=chosen.horizon_hours * HOUR_SECONDS,
            seed=chosen.seed,
        )
        bound = 100 * least_error(waits)
        print(f"up to hour {moment / HOUR_SECONDS:g}: {len(waits)} jobs, {bound:.1f} %", flush=True)
        moment += every
    if waits:
        rows.append(_row("least of any without later jobs", least_error(waits)))
    publish("forecast_bound", rows)


def _row(name: str, error: float, *, goal: str = "") -> Row:
    met = error <= 0.25 if goal else None
    return Row(
        name=f"median error of expected starts: {name}",
        value=100 * error,
        unit="%",
        goal=goal,
        met=met,
        source="examples/simulation, 2,000 jobs on 256 GPUs",
    )


def median_error(
    setup: cluster_file.Setup,
    arrivals: Sequence[Arrival],
    *,
    every: float,
    forecaster: Callable[[CycleInput], Sequence[ExpectedStart]] | None,
) -> float:
    """Return the median error of forecasts, as a share of the wait.

    Args:
        setup: cluster, policy and execution of the simulation.
        arrivals: all jobs.
        every: seconds between two forecasts.
        forecaster: makes the forecasts. None: the operator's forecaster, with its corrections.
    """
    recorder = ForecastRecorder(every_seconds=every)
    if forecaster is not None:
        recorder = ForecastRecorder(every_seconds=every, forecaster=forecaster, corrects=False)
    outcome = simulate(
        cluster=setup.cluster,
        arrivals=arrivals,
        policy=setup.policy,
        execution=setup.execution,
        recorder=recorder,
    )
    error = calibration(outcome.forecasts).median_error
    return inf if error is None else error


if __name__ == "__main__":
    main()
