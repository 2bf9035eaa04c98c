"""Expected starts of pending gangs: run `decide` ahead on a virtual clock.

The remaining runtimes of gangs are drawn at random, several times. The median of a gang's starts is
its p50, and the 90th percentile is its p90. The distributions:

* With a maximum runtime: either limits are honest and all gangs use them up, or users request one
  to three times the need. In the second case a gang runs for its limit divided by a number between
  1 and 3, given how long it has run already. The running gangs show which is more likely. If many
  have used most of their limits, limits are honest (`_honesty`). The probability is the share of
  honest samples.
* With steps that the program reports: it ends with the last of them, give or take `REPORT_ERROR`,
  and at its maximum runtime at the latest.
* Without either, the length is not known, and the band is wide. The length is log-normal, given how
  long the gang has run already. Half of such gangs run for at most an hour, or as long as half of
  the running ones have run, if that is longer. With `SPREAD`, one in ten runs for less than a
  thirteenth of that, and one in ten for more than thirteen times as much. Traces of shared clusters
  look alike (Philly, ATC'19; Helios, SC'21).

Not modelled are later jobs with a higher priority, failures, and gangs behind the first `LINE` in
the order. With many of these the expected starts are too early. The result is deterministic.

Cost: samples x events x a cycle. Both numbers are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from random import Random
from statistics import NormalDist, median
from typing import Final

from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.cluster import ForecastCluster, RuntimeEstimate, promised
from drumline_scheduler.model import Admitted, Gang, Snapshot
from drumline_scheduler.overdue_gangs import without_overdue
from drumline_scheduler.queueing.expected_ends import LEAST_SECONDS

LINE: Final = 32
"""Number of waiting gangs that are simulated, from the head of the line."""
MOMENTS: Final = 100
"""Number of ends after which a sample is given up."""
RESERVATIONS: Final = 2
"""Number of gangs of a pool that have reservations in the samples, under the backfill rule."""
MOST_ASKED: Final = 3.0
"""Largest ratio of the requested to the needed run time."""
REPORT_ERROR: Final = 0.2
"""Error of the end that a program reports, in either direction, as a part of the remaining time."""
USUAL_SECONDS: Final = 3600.0
"""Median length of gangs without a limit or a report."""
SPREAD: Final = 2.0
"""Standard deviation of the logarithm of such lengths: two thirds are within a factor of e**2 =
7.4."""
MOST_SECONDS: Final = 366 * 86_400.0
"""Longest remaining time of such a gang, so that its end has a date."""
FARTHEST_SECONDS: Final = 366 * 86_400.0
"""Longest wait of a rough or corrected forecast, so that it has a date."""
_NORMAL: Final = NormalDist()
_LEAST_CHANCE, _MOST_CHANCE = 1e-300, 1.0 - 1e-12
_NEARLY_ALL: Final = 0.99
"""Used part of a limit above which a gang shows no more about honesty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStart:
    """The probable start of a waiting gang, on the clock of `now`."""

    key: str
    uid: str
    p50_at: float | None
    """Half of the starts are before it. None: later than the forecast looks ahead, or never."""
    p90_at: float | None
    """Nine in ten starts are before it."""


def expected_starts(
    cycle: CycleInput,
    *,
    samples: int = 8,
    seed: int = 0,
    go_on: Callable[[], bool] = lambda: True,
) -> tuple[ExpectedStart, ...]:
    """Return when each of the first gangs in line will probably start, in the order of the line.

    Args:
        cycle: arguments as for `decide`; nothing is moved in the forecast.
        samples: number of simulated futures.
        seed: seed of the random draws.
        go_on: asked before each cycle; once it returns False, the result is empty.
    """
    now = cycle.now
    waiting = {gang.uid: gang for gang in cycle.pending}
    # 1. A policy without moves and surplus: they cost time and change starts little.
    calm = replace(
        cycle.policy,
        moves=None,
        move_back=False,
        surplus=False,
        repairs_preempt=False,
        reservations=min(cycle.policy.reservations, RESERVATIONS),
    )
    # The time until new nodes arrive is not known here.
    overdue = without_overdue(cycle.snapshot, seconds=calm.overdue_seconds, now=now)
    snapshot = replace(overdue.snapshot, offers=(), asked=())
    pending = tuple(waiting.values())
    still = replace(cycle, snapshot=snapshot, pending=pending, policy=calm, explain=False)
    # 2. One cycle on the present gives the line, and gangs on which the scheduler raises.
    first = decide(still)
    still = replace(still, set_aside=first.faults)
    faulty = {fault.uid for fault in first.faults}
    line = [waiting[uid] for uid in first.order if uid not in faulty][:LINE]
    start = promised(snapshot)
    # 3. Simulate the futures, the honest ones first. A cache serves all of them.
    usual = _usual(snapshot=snapshot, now=now)
    honest = round(samples * _honesty(snapshot=snapshot, now=now))
    starts: dict[str, list[float]] = {gang.uid: [] for gang in line}
    cache = CycleCache()
    for sample in range(samples):
        chance = f"{seed}/{sample}"
        length = _lengths(chance=chance, usual=usual, honest=sample < honest)
        future = ForecastCluster(snapshot=start, pending=line, now=now, length=length)
        for uid, at in _run(still, future=future, line=line, cache=cache, go_on=go_on).items():
            starts[uid].append(at)
        if not go_on():
            return ()
    return tuple(
        ExpectedStart(
            key=gang.key,
            uid=gang.uid,
            p50_at=_quantile(starts[gang.uid], of=samples, share=0.5),
            p90_at=_quantile(starts[gang.uid], of=samples, share=0.9),
        )
        for gang in line
    )


def _run(
    still: CycleInput,
    *,
    future: ForecastCluster,
    line: Sequence[Gang],
    cache: CycleCache,
    go_on: Callable[[], bool],
) -> dict[str, float]:
    """Return when each gang starts in one future, as far as the forecast looks ahead."""
    starts: dict[str, float] = {}
    for _ in range(MOMENTS):
        if not go_on():
            break
        moment = replace(still, snapshot=future.snapshot, pending=future.pending, now=future.now)
        decisions = decide(moment, cache=cache)
        future.carry_out(decisions)
        for placed in decisions.placed:
            starts.setdefault(placed.uid, future.now)
        # Stop when every gang has started, or when nothing more can happen.
        if all(gang.uid in starts for gang in line) or not future.go_on(until=decisions.retry_at):
            break
    return {gang.uid: starts[gang.uid] for gang in line if gang.uid in starts}


def _lengths(*, chance: str, usual: float, honest: bool) -> RuntimeEstimate:
    """Return the run times of gangs in one future.

    A gang's draw depends only on its uid and the seed.

    Args:
        chance: seed of the future.
        usual: median length of gangs without a limit or a report.
        honest: whether limits are used up.
    """

    def length(gang: Gang, ran: float, left: float | None) -> float:
        draw = 1.0 - Random(f"{chance}/{gang.uid}").random()  # noqa: S311 - no secret
        limit = gang.max_runtime_seconds
        # A program that reports its steps is the best source, up to its error and its limit.
        if left is not None and left > 0:
            drawn = max(LEAST_SECONDS, left * (1.0 + REPORT_ERROR * (2.0 * draw - 1.0)))
            return drawn if limit is None else min(drawn, max(LEAST_SECONDS, limit - ran))
        if limit is None:
            return max(LEAST_SECONDS, _unknown_length(draw, usual=usual, ran=ran) - ran)
        if limit <= ran:
            return LEAST_SECONDS
        if honest:
            return limit - ran
        # The gang still runs, so it requested at most limit / ran times its need.
        most = min(MOST_ASKED, limit / ran) if ran > 0 else MOST_ASKED
        return limit / (1.0 + (most - 1.0) * (1.0 - draw)) - ran

    return length


def _usual(*, snapshot: Snapshot, now: float) -> float:
    """Return the median length of gangs without a limit or a report."""
    had = [now - held.admitted_at for held in snapshot.admitted if _is_open(held)]
    return max(USUAL_SECONDS, median(had) if had else 0.0)


def _unknown_length(draw: float, *, usual: float, ran: float) -> float:
    """Return the length that a share `draw` of the gangs exceed that have run for `ran` seconds."""
    # Conditional on having run for `ran` seconds: scale the draw by the share that runs longer.
    longer = _NORMAL.cdf(-log(ran / usual) / SPREAD) if ran > 0 else 1.0
    chance = min(_MOST_CHANCE, max(_LEAST_CHANCE, draw * longer))
    return min(max(ran, usual * exp(-SPREAD * _NORMAL.inv_cdf(chance))), ran + MOST_SECONDS)


def _honesty(*, snapshot: Snapshot, now: float) -> float:
    """Return the probability that limits are used up, from the used parts of running gangs' limits.

    Both cases are equally likely beforehand. An honest limit is used to any part with equal chance:
    the density is 1. Otherwise a gang that requested `u` times its need is observed in proportion
    to its run time, anywhere in the first 1 / u of its limit: P(u < 1 / part) / E(1 / u).
    """
    evidence = 0.0
    for held in snapshot.admitted:
        limit = held.gang.max_runtime_seconds
        if limit is not None and not held.leaving:
            part = min(_NEARLY_ALL, max(0.0, now - held.admitted_at) / limit)
            # Sum of log likelihood ratios, so that many gangs do not underflow.
            evidence -= log(_density(part))
    return 1.0 / (1.0 + exp(min(-evidence, 500.0)))


def _density(part: float) -> float:
    """Return the density of the used part if users request 1 to `MOST_ASKED` times their need."""
    spread = MOST_ASKED - 1.0
    longer = 1.0 if part * MOST_ASKED <= 1.0 else (1.0 / part - 1.0) / spread
    return longer * spread / log(MOST_ASKED)


def _is_open(held: Admitted) -> bool:
    """Return whether the length of a running gang is unknown."""
    return held.gang.max_runtime_seconds is None and not held.is_residual


def _quantile(starts: Sequence[float], *, of: int, share: float) -> float | None:
    """Return the time before which a share of all samples had started; None if it is infinite."""
    full = sorted([*starts, *[inf] * (of - len(starts))])
    at = full[min(of - 1, int(share * of))]
    return None if at == inf else at
