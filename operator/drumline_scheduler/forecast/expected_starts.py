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

Each pool and root queue has its own line (`lines`), and the first gangs of every line take part.
Gangs that cannot start are left out.

A band that is both wide and long says nothing: behind gangs of unknown length it would reach from
days to a year. `is_vague` recognizes it, and its start is not known.

Not modelled are later jobs with a higher priority, failures, and gangs behind the first `LINE` of
their line: with many of these the expected starts are too early. The result is deterministic.

Cost: samples x events x a cycle; all three are bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from random import Random
from statistics import NormalDist, median
from typing import Final

from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.cluster import ForecastCluster, RuntimeEstimate, promised
from drumline_scheduler.forecast.isolation import OnFault, forecast_around_faults, ignored
from drumline_scheduler.forecast.lines import CANNOT_START, Lines
from drumline_scheduler.model import Admitted, Gang, Snapshot
from drumline_scheduler.overdue_gangs import without_overdue
from drumline_scheduler.queueing.expected_ends import LEAST_SECONDS
from drumline_scheduler.queueing.line_order import line_of

SAMPLES: Final = 5
"""Number of simulated futures, for the operator and for `drumline decide`."""
LINE: Final = 32
"""Number of gangs of each line that take part."""
MOST_GANGS: Final = 160
"""Maximum number of gangs that take part, over all lines."""
MOMENTS: Final = 100
"""Number of moments of a future. Starts after them are not seen."""
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
VAGUE_SECONDS: Final = 7 * 86_400.0
VAGUE_RATIO: Final = 6.0
"""A band is vague if its end is more than a week away and six times as far as its beginning."""
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
    never: bool = False
    """True if no known end lets it start, for example behind a Deployment."""


@dataclass(slots=True, kw_only=True)
class KnownFutures:
    """Simulated futures, and everything that they were computed from. Empty at first.

    A waiting gang behind the first ones of its line takes part in no future. So the same futures
    answer many questions about what another gang would change.
    """

    made_of: object = None
    starts: Sequence[Mapping[str, float]] = ()


def expected_starts(
    cycle: CycleInput,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    go_on: Callable[[], bool] = lambda: True,
    known: KnownFutures | None = None,
    on_fault: OnFault = ignored,
) -> tuple[ExpectedStart, ...]:
    """Return when the first gangs of every line will probably start, in scheduling order.

    A waiting gang on which the forecast raises is left out. A running one counts as staying.

    Args:
        cycle: arguments as for `decide`; nothing is moved in the forecast.
        samples: number of simulated futures.
        seed: seed of the random draws.
        go_on: called before each cycle. If it returns False, only the complete futures count. If
            none is complete, the result is empty.
        known: futures of earlier calls. They are used if they are the same, else replaced by these.
        on_fault: takes each exception on one gang.

    Raises:
        Exception: it raises on more gangs than `isolation.MOST_FAULTS`, or whatever gangs are left
            out.
    """

    def attempt(snapshot: Snapshot, pending: tuple[Gang, ...]) -> tuple[ExpectedStart, ...]:
        given = replace(cycle, snapshot=snapshot, pending=pending)
        return _expected_starts(given, samples=samples, seed=seed, go_on=go_on, known=known)

    return forecast_around_faults(
        attempt, snapshot=cycle.snapshot, pending=cycle.pending, on_fault=on_fault
    )


def _expected_starts(
    cycle: CycleInput,
    *,
    samples: int,
    seed: int,
    go_on: Callable[[], bool],
    known: KnownFutures | None,
) -> tuple[ExpectedStart, ...]:
    now = cycle.now
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
    still = replace(cycle, snapshot=snapshot, policy=calm, explain=False)
    # 2. One cycle on the present gives the line, and gangs on which the scheduler raises.
    first = decide(still)
    still = replace(still, set_aside=first.faults)
    left_out = {fault.uid for fault in first.faults}
    left_out |= {each.uid for each in first.blocked if each.reason in CANNOT_START}
    in_line = line_of(cycle.pending, order=first.order, considered=first.considered)
    order = (gang for gang in in_line if gang.uid not in left_out)
    line = Lines(snapshot).heads(order, each=LINE, most=MOST_GANGS)
    if not line:
        return ()
    # 3. Simulate the futures.
    made_of = (replace(still, pending=()), line, samples, seed)
    if known is not None and known.made_of == made_of:
        futures = known.starts
    else:
        futures = _futures(still, line=line, samples=samples, seed=seed, go_on=go_on)
        if known is not None and len(futures) == samples:
            known.made_of, known.starts = made_of, futures
    starts = {gang.uid: [seen.get(gang.uid) for seen in futures] for gang in line}
    return tuple(
        ExpectedStart(
            key=gang.key,
            uid=gang.uid,
            p50_at=_quantile(starts[gang.uid], share=0.5),
            p90_at=_quantile(starts[gang.uid], share=0.9),
            never=2 * starts[gang.uid].count(inf) > len(futures),
        )
        for gang in (line if futures else ())
    )


def _futures(
    still: CycleInput,
    *,
    line: Sequence[Gang],
    samples: int,
    seed: int,
    go_on: Callable[[], bool],
) -> Sequence[Mapping[str, float]]:
    """Return when each gang of a line starts, by uid, in each complete future."""
    snapshot, now = still.snapshot, still.now
    start = promised(snapshot)
    usual = _usual(snapshot=snapshot, now=now)
    honest = round(samples * _honesty(snapshot=snapshot, now=now))
    complete: list[Mapping[str, float]] = []
    cache = CycleCache()
    for sample in _mixed(samples):
        chance = f"{seed}/{sample}"
        length = _lengths(chance=chance, usual=usual, honest=sample < honest)
        future = ForecastCluster(snapshot=start, pending=line, now=now, length=length)
        seen = _run(still, future=future, line=line, cache=cache, go_on=go_on)
        if not go_on():
            break
        complete.append(seen)
    return complete


def _mixed(samples: int) -> Sequence[int]:
    """Return the numbers of the futures, alternately from both ends: 0, 4, 1, 3, 2.

    The first ones are those with honest limits. A forecast that is stopped has some of both.
    """
    numbers = deque(range(samples))
    return [numbers.popleft() if turn % 2 == 0 else numbers.pop() for turn in range(samples)]


def is_vague(start: ExpectedStart, *, now: float) -> bool:
    """Return whether a band is too wide to plan by."""
    if start.p50_at is None or start.p90_at is None:
        return False
    latest = start.p90_at - now
    return latest > VAGUE_SECONDS and latest > VAGUE_RATIO * (start.p50_at - now)


def _run(
    still: CycleInput,
    *,
    future: ForecastCluster,
    line: Sequence[Gang],
    cache: CycleCache,
    go_on: Callable[[], bool],
) -> dict[str, float]:
    """Return when each gang starts in one future, as far as the forecast looks ahead.

    A gang that waits when nothing happens any more starts at infinity.
    """
    starts: dict[str, float] = {}
    waits_for_ever = False
    for _ in range(MOMENTS):
        if not go_on():
            break
        moment = replace(still, snapshot=future.snapshot, pending=future.pending, now=future.now)
        decisions = decide(moment, cache=cache)
        still = replace(still, set_aside=decisions.faults)  # each fault is found once
        future.carry_out(decisions)
        for placed in decisions.placed:
            starts.setdefault(placed.uid, future.now)
        # Stop when every gang has started, or when nothing more can happen.
        if all(gang.uid in starts for gang in line):
            break
        if not future.go_on(until=decisions.retry_at):
            waits_for_ever = True
            break
    if waits_for_ever:
        return {gang.uid: starts.get(gang.uid, inf) for gang in line}
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
        if limit is not None and not (held.leaving or held.is_overdue):
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
    return held.gang.max_runtime_seconds is None and not (held.is_residual or held.is_overdue)


def _quantile(starts: Sequence[float | None], *, share: float) -> float | None:
    """Return the time before which that share of the futures had started; None: not seen."""
    full = sorted(inf if start is None else start for start in starts)
    at = full[min(len(full) - 1, int(share * len(full)))] if full else inf
    return None if at == inf else at
