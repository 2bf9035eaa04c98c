"""Bound the error of expected starts on the example's trace, for any forecaster.

`make bench WHAT=forecast_bound` prints the operator's median error beside a lower bound for all
forecasters that do not know the future. The questions are those of `make bench WHAT=engine`: every
six hours, the start of each job that has not started.

At the moment of a question, futures are drawn and replayed by the real scheduler. They share the
past, and everything that a forecaster may know. Three things differ:

* The later jobs. Their number, the end of the trace and the rate by time of day stay the same.
* The remaining run times of running jobs, given queue, time limit and work done.
* The run times of pending jobs, given queue and time limit, and the work done before a preemption.

All are drawn from the generator of the trace, so the actual future is one more such draw. Programs
of the trace report no steps, and no node fails. The forecaster of the bound may know the generator,
its parameters and the exact work done. The operator knows less.

    future    1      2      3      4       5
    wait    600 s  660 s  900 s  2400 s  7200 s  -> within 25 %: 600 to 900 s with 720 s, 3 of 5

For an error e, the share of waits within e of the best forecast of each job is the most that a
forecaster reaches. The bound is the least e at which the mean share is a half. The best forecast is
chosen after the waits are known, so the bound of few futures is too low, never too high on average.
`reached` chooses each forecast without the future that it is compared with. A forecaster with all
of this knowledge reaches that error, so the best possible error is between both.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, nan
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Final

from drumline_scheduler import CycleCache, CycleInput, Decisions, decide
from drumline_scheduler.forecast.accuracy import StartForecast, calibration
from drumline_scheduler.forecast.expected_starts import ExpectedStart, expected_starts
from drumline_simulator.engine.forecast_recorder import ForecastRecorder
from drumline_simulator.engine.simulation import Simulation
from drumline_simulator.input import cluster_file, synthetic
from drumline_simulator.input.cluster_file import Setup
from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.workload import Arrival
from tools.bench.report import Row, publish

_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "simulation"
EVERY_SECONDS: Final = 6 * 3600.0
STEP_SECONDS: Final = 1800.0
FARTHEST_SECONDS: Final = 30 * 86_400.0
JOBS: Final = 2000
LOAD: Final = 1.15
OTHER_JOBS: Final = 100_000
"""Number of other jobs of the generator, from which futures are drawn."""
OTHER_SEED: Final = 1_000_003
ALIKE: Final = 50
"""Number of these jobs with a similar limit that make a distribution of run times."""
LIMIT_STEP: Final = 600.0
RESAMPLES: Final = 200


def most_within(waits: Sequence[float], *, error: float) -> tuple[int, float]:
    """Return the most waits that one forecast is near, and the forecast.

    A forecast f is near a wait w if |f - w| <= error * w.

    Args:
        waits: the waits of one job in several futures, ascending, in seconds.
        error: the largest error, as a share of the wait.
    """
    lowest = [wait * (1 - error) for wait in waits]
    best, forecast = 0, 0.0
    for number, wait in enumerate(waits):
        # The highest forecast that is near this wait, and the last wait that it is near.
        highest = wait * (1 + error)
        end = bisect_right(lowest, highest)
        if wait < inf and end - number > best:
            # The middle of all forecasts that are near the same waits.
            best, forecast = end - number, (highest + lowest[end - 1]) / 2
    return best, forecast


def least_error(waits: Sequence[Sequence[float]]) -> float:
    """Return the least median error of any forecaster.

    Args:
        waits: the waits of each job, ascending, one for each future. Infinite: it never started.
    """

    def share(error: float) -> float:
        return fmean(most_within(each, error=error)[0] / len(each) for each in waits)

    return _least(share)


def reached_error(waits: Sequence[Sequence[float]]) -> float:
    """Return the median error of a forecaster that knows all futures except the actual one.

    Each future is the actual one in turn.

    Args:
        waits: as in `least_error`, of at least two futures.
    """

    def share(error: float) -> float:
        return fmean(
            fmean(
                abs(most_within([*each[:i], *each[i + 1 :]], error=error)[1] - wait) <= error * wait
                for i, wait in enumerate(each)
            )
            for each in waits
        )

    return _least(share)


def _least(share: Callable[[float], float]) -> float:
    """Return the least error up to 8 at which a share is a half, by bisection."""
    low, high = 0.0, 8.0
    while high - low > 0.001:
        error = (low + high) / 2
        low, high = (low, error) if share(error) >= 0.5 else (error, high)
    return high


def interval(waits: Mapping[float, Sequence[Sequence[float]]], *, seed: int) -> tuple[float, float]:
    """Return the 5th and the 95th percentile of the bound over resampled moments.

    Args:
        waits: the waits of the jobs by moment. Jobs of one moment have common causes.
        seed: seed of the bootstrap.
    """
    chance, moments = Random(seed), list(waits)
    bounds = sorted(
        least_error(
            [each for moment in chance.choices(moments, k=len(moments)) for each in waits[moment]]
        )
        for _ in range(RESAMPLES)
    )
    return bounds[len(bounds) // 20], bounds[-1 - len(bounds) // 20]


@dataclass(slots=True, kw_only=True)
class Futures:
    """Draws futures of a simulation of a synthetic trace."""

    arrivals: Sequence[Arrival]
    """The jobs of the trace."""
    others: Sequence[Arrival]
    """Independent jobs of the same generator."""
    began_at: float
    """Second of the generator at which the first job of the trace is submitted."""
    until: float
    """Second of the generator at which submissions end."""
    _limits: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]], init=False
    )
    """Limits and run times of the other jobs by queue, ascending."""
    _alike: dict[tuple[str, float], list[float]] = field(
        default_factory=dict[tuple[str, float], list[float]], init=False
    )

    def __post_init__(self) -> None:
        for job in self.others:
            pair = (_limit(job), job.duration_seconds)
            self._limits.setdefault(job.gang.queue, []).append(pair)
        for pairs in self._limits.values():
            pairs.sort()

    def waits(self, simulation: Simulation, *, now: float, chance: Random) -> dict[str, float]:
        """Return the waits in one future, by uid, of the jobs that have not started."""
        present = simulation.work_done()
        jobs = {job.gang.uid: job for job in self.arrivals}
        submitted = sum(job.gang.queued_at <= now for job in self.arrivals)
        count = len(self.arrivals) - submitted
        times = synthetic.submissions(
            chance, count=count, since=self.began_at + now, until=self.until
        )
        later = [
            _submitted(chance.choice(self.others), uid=f"later-{number:06}", at=at - self.began_at)
            for number, at in enumerate(times)
        ]
        branch = simulation.branch(
            seconds={
                uid: self.seconds(jobs[uid], done=done, chance=chance)
                for uid, done in present.items()
            },
            later=later,
        )
        return _waits(branch, {uid for uid, done in present.items() if not done}, now=now)

    def seconds(self, job: Arrival, *, done: float, chance: Random) -> float:
        """Return a run time of a job, given its queue, its limit and the seconds of work done."""
        alike = self._like(job.gang.queue, _limit(job))
        longer = alike[bisect_right(alike, done) :]
        # Almost no job with this limit runs as long: any end up to the limit is as likely.
        return chance.choice(longer) if longer else chance.uniform(done, max(done + 1, _limit(job)))

    def _like(self, queue: str, limit: float) -> list[float]:
        """Return run times of jobs with a similar limit, scaled to this limit, ascending."""
        if (queue, limit) not in self._alike:
            pairs, width, found = self._limits[queue], 0.0, list[tuple[float, float]]()
            while len(found) < ALIKE and width < limit:
                first = bisect_left(pairs, (limit - width, 0.0))
                found = pairs[first : bisect_right(pairs, (limit + width, inf))]
                width += LIMIT_STEP
            self._alike[queue, limit] = sorted(seconds * limit / of for of, seconds in found)
        return self._alike[queue, limit]


def _limit(job: Arrival) -> float:
    assert job.gang.max_runtime_seconds is not None
    return job.gang.max_runtime_seconds


def _submitted(job: Arrival, *, uid: str, at: float) -> Arrival:
    gang = replace(job.gang, key=f"{job.gang.queue}/{uid}", uid=uid, queued_at=at)
    return replace(job, gang=gang)


def _waits(branch: Simulation, uids: set[str], *, now: float) -> dict[str, float]:
    """Run a future until these jobs have started, and return their waits."""
    waits = dict.fromkeys(uids, inf)
    cache = CycleCache()

    def decider(cycle: CycleInput) -> Decisions:
        # Explanations change no decision and take a third of the time.
        decisions = decide(replace(cycle, explain=False), cache=cache)
        for placed in decisions.placed:
            if waits.get(placed.uid) == inf:
                waits[placed.uid] = cycle.now - now
        return decisions

    until = now
    while inf in waits.values() and until < now + FARTHEST_SECONDS:
        until += STEP_SECONDS
        branch.run(decider=decider, until=until)
    return waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Forecasts of the operator, and the waits of their jobs in drawn futures."""

    forecasts: Sequence[StartForecast]
    waits: Mapping[tuple[float, str], Sequence[float]]
    """Ascending waits in seconds, by moment and uid."""

    @property
    def asked(self) -> list[tuple[StartForecast, Sequence[float]]]:
        """Return the forecasts with drawn futures, and the waits."""
        keyed = ((each, self.waits.get((each.made_at, each.uid))) for each in self.forecasts)
        return [(each, waits) for each, waits in keyed if waits]


def asked(
    setup: Setup,
    futures: Futures,
    *,
    count: int,
    chosen: Callable[[int], bool],
    seed: int,
) -> Questions:
    """Simulate the trace, forecast its starts, and draw futures at some of the moments.

    Args:
        setup: cluster, policy and execution of the simulation.
        futures: draws the futures.
        count: number of futures.
        chosen: whether futures are drawn at the moment of this number.
        seed: seed of the futures.
    """
    simulation = Simulation(
        cluster=setup.cluster,
        arrivals=futures.arrivals,
        policy=setup.policy,
        execution=setup.execution,
    )
    waits: dict[tuple[float, str], list[float]] = {}
    moments: list[float] = []

    def forecaster(cycle: CycleInput) -> Sequence[ExpectedStart]:
        moments.append(cycle.now)
        for number in range(count if chosen(len(moments) - 1) else 0):
            chance = Random(f"{seed}/{cycle.now}/{number}")
            drawn = futures.waits(simulation, now=cycle.now, chance=chance)
            for uid, wait in drawn.items():
                waits.setdefault((cycle.now, uid), []).append(wait)
        return expected_starts(cycle)

    recorder = ForecastRecorder(every_seconds=EVERY_SECONDS, forecaster=forecaster)
    simulation.run(recorder=recorder)
    return Questions(
        forecasts=simulation.outcome(recorder).forecasts,
        waits={key: sorted(each) for key, each in waits.items()},
    )


def example(trace_seed: int) -> tuple[Setup, Futures]:
    """Return the example's cluster, and the futures of a trace. Seed 1: the example's trace."""
    setup = cluster_file.parse((_EXAMPLE / "cluster.yaml").read_text(), file="cluster.yaml")
    cluster = setup.cluster
    queues = [queue.name for queue in cluster.queues if any(queue.nominal.values())]
    made = partial(synthetic.trace, gpus=cluster.gpus, queues=queues, load=LOAD)
    jobs, others = made(seed=trace_seed, jobs=JOBS), made(seed=OTHER_SEED, jobs=OTHER_JOBS)
    arrivals = partial(to_arrivals, cluster=cluster, default_queue="", file="the synthetic trace")
    work = sum(job.gpus * job.duration_seconds for job in jobs)
    futures = Futures(
        arrivals=arrivals(jobs),
        others=arrivals(others),
        began_at=min(job.submit_seconds for job in jobs),
        until=work / (cluster.gpus * LOAD),
    )
    return setup, futures


def rows(questions: Questions, *, seed: int) -> Iterable[Row]:
    """Return the figures: the operator's error and coverage, the bound, and how near it is."""
    ours = calibration(questions.forecasts)
    error, covered = ours.median_error or nan, 100 * (ours.by_p90 or nan)
    yield _row("median error: the operator", 100 * error, goal="<= 25 %", met=error <= 0.25)
    yield _row("at or before the p90", covered, goal="80 to 95 %", met=80 <= covered <= 95)
    drawn = questions.asked
    if not drawn:
        return
    # The actual future is one more draw, so the bound counts it too.
    waits = [sorted([*each, _wait(forecast)]) for forecast, each in drawn]
    moments: dict[float, list[Sequence[float]]] = {}
    for (forecast, _), each in zip(drawn, waits, strict=True):
        moments.setdefault(forecast.made_at, []).append(each)
    low, high = interval(moments, seed=seed)
    reached = reached_error(waits)
    yield _row("median error: lower bound of any forecaster", 100 * least_error(waits))
    yield _row("the bound's 5th percentile over moments", 100 * low)
    yield _row("the bound's 95th percentile over moments", 100 * high)
    yield _row("median error: reached with the generator known", 100 * reached)
    actual = median(
        abs(most_within(each, error=reached)[1] / _wait(forecast) - 1) for forecast, each in drawn
    )
    yield _row("the same on the actual future", 100 * actual)
    same = calibration([forecast for forecast, _ in drawn]).median_error or nan
    yield _row("median error: the operator on these questions", 100 * same)
    early = fmean(_wait(forecast) < median(each) for forecast, each in drawn)
    yield _row("actual waits below the median of the futures", 100 * early)
    yield Row(name="questions with futures", value=len(drawn), unit="")
    yield Row(name="drawn futures of each, at least", value=min(map(len, waits)) - 1, unit="")


def _wait(forecast: StartForecast) -> float:
    return forecast.started_at - forecast.made_at


def _row(name: str, value: float, *, goal: str = "", met: bool | None = None) -> Row:
    source = "examples/simulation, 2,000 jobs on 256 GPUs"
    return Row(name=name, value=value, unit="%", goal=goal, met=met, source=source)


def main() -> None:
    """Print the error of the operator, and the least error of any forecaster."""
    parser = argparse.ArgumentParser(prog="forecast_bound", description=main.__doc__)
    parser.add_argument("--futures", type=int, default=24)
    parser.add_argument("--moments", default="0,2,4,6,8,10,12", help="numbers of the moments")
    parser.add_argument("--seed", type=int, default=0, help="seed of the futures")
    parser.add_argument("--trace-seed", type=int, default=1, help="1: the example's trace")
    parser.add_argument("--keep", type=Path, help="add the waits to those of this file")
    chosen = parser.parse_args()
    setup, futures = example(chosen.trace_seed)
    moments = frozenset(map(int, chosen.moments.split(",")))
    questions = asked(
        setup, futures, count=chosen.futures, chosen=moments.__contains__, seed=chosen.seed
    )
    if chosen.keep is not None:
        questions = _kept(questions, file=chosen.keep)
    publish("forecast_bound", list(rows(questions, seed=chosen.seed)))


def _kept(questions: Questions, *, file: Path) -> Questions:
    """Add the waits of earlier runs with other seeds or moments, and write all of them."""
    waits = {key: list(each) for key, each in questions.waits.items()}
    for moment, uid, each in json.loads(file.read_text()) if file.exists() else ():
        waits.setdefault((moment, uid), []).extend(each)
    file.write_text(json.dumps([[*key, each] for key, each in waits.items()]))
    return replace(questions, waits={key: sorted(each) for key, each in waits.items()})


if __name__ == "__main__":
    main()
