"""Least error of expected starts for any forecaster that does not know which jobs will come.

The example's trace is simulated again and again up to a moment, each time with other later jobs:
the same moments of submission, each with a random job of the trace. The waits of jobs that are
pending at that moment then differ, and no forecast made at it can be near all of them.

    future    1      2      3      4       5
    wait    600 s  660 s  900 s  2400 s  7200 s  -> within 25 %: 600 to 900 s with 720 s, 3 of 5

For an error e, the share of waits within e of the best forecast of each job is the most that a
forecaster reaches. It may know all run times, all later moments of submission, and this
distribution. The bound is the least e at which the share reaches a half. The best forecast is
chosen after the waits are known, and a wait beyond the horizon counts as forecast, so the bound is
too low rather than too high.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from drumline_simulator.engine.simulation import simulate
from drumline_simulator.input import cluster_file, trace
from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.workload import Arrival

_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "simulation"
_HOUR: Final = 3600.0


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


def waits_of(
    arrivals: Sequence[Arrival], *, moment: float, futures: int, horizon: float, seed: int
) -> list[list[float | None]]:
    """Return the waits of the jobs that are pending at a moment, in so many futures."""
    setup = cluster_file.parse((_EXAMPLE / "cluster.yaml").read_text(), file="cluster.yaml")
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
    """Print the bound and what it is made of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every-hours", type=float, default=12.0)
    parser.add_argument("--futures", type=int, default=16)
    parser.add_argument("--horizon-hours", type=float, default=36.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    setup = cluster_file.parse((_EXAMPLE / "cluster.yaml").read_text(), file="cluster.yaml")
    with (_EXAMPLE / "trace.csv").open() as lines:
        jobs = list(trace.read(lines, file="trace.csv"))
    arrivals = to_arrivals(jobs, cluster=setup.cluster, default_queue="", file="trace.csv")
    last = max(job.gang.queued_at for job in arrivals)
    every: list[list[float | None]] = []
    moment = chosen.every_hours * _HOUR
    while moment < last:
        every += waits_of(
            arrivals,
            moment=moment,
            futures=chosen.futures,
            horizon=chosen.horizon_hours * _HOUR,
            seed=chosen.seed,
        )
        print(
            f"up to hour {moment / _HOUR:.0f}: {len(every)} pending jobs in {chosen.futures}"
            f" futures; least median error {100 * least_error(every):.1f} %",
            flush=True,
        )
        moment += chosen.every_hours * _HOUR


if __name__ == "__main__":
    main()
