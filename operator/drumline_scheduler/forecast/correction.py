"""Correct forecasts of starts by the outcomes of earlier ones.

A simulated future has no later jobs, so its starts are too early while work keeps coming. Earlier
outcomes help. For each forecast, the learner keeps the ratio of the actual wait to the forecast
wait. The median and the 90th percentile of these ratios correct the next forecast, as in split
conformal prediction (Vovk et al., 2005). If delays continue as before, nine in ten starts are
before the p90, however wrong the model is.

    forecast 10, 20 and 40 min, actual 15, 60 and 40 -> ratios 1.5, 3, 1
    the next forecast of 10 min becomes 15 min

Ratios are learned for each group (a queue, and how the forecast was made). They are mixed with a
few ratios of all groups, and with `PRIOR`, which is the only source at the beginning. A job that
already waits longer than forecast counts with its wait so far. Otherwise only fast starts would
count.

Forecasts without an outcome are kept: a few for each waiting job, and a bounded number in all. A
job that waits for days keeps its first forecasts and its newest. At the limit, the job with the
most notes drops its oldest if it has at least two more than the new job.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from drumline_scheduler.forecast.expected_starts import FARTHEST_SECONDS, ExpectedStart, is_vague
from drumline_scheduler.model import Gang

PRIOR: Final = (0.6, 0.8, 1.0, 1.5, 2.5)
"""Ratios before anything is known: half of the forecasts are right, and one may be early by 2.5
times."""
PRIOR_WEIGHT: Final = 5.0
"""Weight of the prior in a group, in observations."""
OTHERS_WEIGHT: Final = 3.0
"""Weight of the ratios of all groups together, in observations. Each of them weighs at most 1/3."""
ALLOWANCE_SECONDS: Final = 60.0
"""Added to both waits before they are compared, so that a start in 1 s and in 10 s count alike."""
MOST_RATIOS: Final = 1000
"""Number of newest ratios that are kept for a group."""
NOTED_EACH_SECONDS: Final = 1800.0
"""Shortest time between two kept forecasts of one job."""
MOST_OF_A_JOB: Final = 8
"""Largest number of kept forecasts of one job."""
MOST_NOTED: Final = 20_000
"""Largest number of kept forecasts in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedForecast:
    """The expected start of a job of a group, and the time of the forecast."""

    group: str
    made_at: float
    expected_at: float


@dataclass(slots=True, kw_only=True)
class ForecastNotes:
    """The forecasts of jobs that wait, by uid. Every change is O(1)."""

    _noted: dict[str, list[NotedForecast]] = field(
        default_factory=dict[str, list[NotedForecast]], init=False
    )
    _with: tuple[dict[str, None], ...] = field(
        default_factory=lambda: tuple(dict[str, None]() for _ in range(MOST_OF_A_JOB + 1)),
        init=False,
    )
    """Uids by their number of notes."""
    _count: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[NotedForecast]:
        return chain.from_iterable(self._noted.values())

    @property
    def uids(self) -> Collection[str]:
        """The jobs that have notes."""
        return self._noted.keys()

    def add(self, uid: str, noted: NotedForecast) -> None:
        """Keep a forecast, unless the job's last one is recent or the limit is reached."""
        before = self._noted.get(uid, [])
        if before and noted.made_at < before[-1].made_at + NOTED_EACH_SECONDS:
            return
        # Drop one in the middle, so that the first forecasts and the newest stay.
        if len(before) == MOST_OF_A_JOB:
            del before[MOST_OF_A_JOB // 2]
            before.append(noted)
        elif self._count < MOST_NOTED or self._make_room(beside=len(before)):
            self._set(uid, [*before, noted])

    def take(self, uid: str) -> list[NotedForecast]:
        """Return the forecasts of a job and forget them."""
        noted = self._noted.get(uid, [])
        self._set(uid, [])
        return noted

    def _make_room(self, *, beside: int) -> bool:
        """Drop the oldest note of a job with the most notes, if it has two more than `beside`."""
        for number in range(MOST_OF_A_JOB, beside + 1, -1):
            if self._with[number]:
                uid, _ = self._with[number].popitem()
                self._set(uid, self._noted[uid][1:])
                return True
        return False

    def _set(self, uid: str, noted: list[NotedForecast]) -> None:
        before = len(self._noted.get(uid, ()))
        self._with[before].pop(uid, None)
        self._count += len(noted) - before
        if noted:
            self._noted[uid] = noted
            self._with[len(noted)][uid] = None
        else:
            self._noted.pop(uid, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedStart:
    """A forecast as it was made, and the group whose delays it shares."""

    start: ExpectedStart
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Ratios of actual to forecast wait, by group: the median and the 90th percentile."""

    groups: Mapping[str, tuple[float, float]]
    elsewhere: tuple[float, float]
    """Ratios for a group without observations."""

    def of(self, grouped: GroupedStart, *, now: float) -> ExpectedStart:
        """Return the corrected forecast. A p90 only moves to later times.

        The model may have good reasons for a late p90. Neither time is later than
        `FARTHEST_SECONDS`, because a limit may be longer than the calendar.
        A vague band (`is_vague`) becomes a start that is not known.
        """
        start = grouped.start
        if start.p50_at is None:
            return start
        half, most = self.groups.get(grouped.group, self.elsewhere)
        # The allowance keeps the ratio of short waits meaningful, so it
        # is removed again afterwards.
        padded, farthest = _padded(now, start.p50_at), now + FARTHEST_SECONDS
        p50_at, latest = (
            now + max(0.0, ratio * padded - ALLOWANCE_SECONDS) for ratio in (half, most)
        )
        corrected = ExpectedStart(
            key=start.key,
            uid=start.uid,
            p50_at=min(p50_at, farthest),
            p90_at=min(latest if start.p90_at is None else max(latest, start.p90_at), farthest),
        )
        if is_vague(corrected, now=now):
            return replace(start, p50_at=None, p90_at=None)
        return corrected


@dataclass(slots=True, kw_only=True)
class ForecastLearner:
    """Keeps forecasts until their jobs start, and the ratios of their outcomes."""

    _notes: ForecastNotes = field(default_factory=ForecastNotes, init=False)
    _ratios: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]], init=False)

    def note(self, forecasts: Iterable[GroupedStart], *, now: float) -> None:
        """Keep forecasts, as they were before any correction."""
        for each in forecasts:
            if each.start.p50_at is not None:
                noted = NotedForecast(group=each.group, made_at=now, expected_at=each.start.p50_at)
                self._notes.add(each.start.uid, noted)

    @property
    def waiting(self) -> Collection[str]:
        """Uids of the jobs whose starts are still open."""
        return self._notes.uids

    def started(self, uid: str, *, at: float) -> None:
        """Record the start of a job."""
        for noted in self._notes.take(uid):
            # A forecast made at the start itself says nothing about waiting.
            if at > noted.made_at:
                ratios = self._ratios.setdefault(noted.group, deque(maxlen=MOST_RATIOS))
                ratios.append(_ratio(noted, started_at=at))

    def left(self, uid: str) -> None:
        """Forget a job that no longer waits and did not start."""
        self._notes.take(uid)

    def correction(self, now: float) -> Correction:
        """Return the correction from the outcomes so far. O(n log n), for any number of groups."""
        seen = {group: list(ratios) for group, ratios in self._ratios.items()}
        for noted in self._notes:
            if now > noted.expected_at:
                # An overdue job counts with its wait so far, which is a lower bound of its ratio.
                at_least = _ratio(noted, started_at=now)
                seen.setdefault(noted.group, []).append(at_least)
        everything = sorted(chain.from_iterable(seen.values()))
        return Correction(
            groups={
                group: _corrected(sorted(ratios), everywhere=everything)
                for group, ratios in seen.items()
            },
            elsewhere=_corrected((), everywhere=everything),
        )


def _ratio(noted: NotedForecast, *, started_at: float) -> float:
    """Return the ratio of the actual wait to the expected one."""
    return _padded(noted.made_at, started_at) / _padded(noted.made_at, noted.expected_at)


def _padded(since: float, until: float) -> float:
    return max(0.0, until - since) + ALLOWANCE_SECONDS


def _corrected(own: Sequence[float], *, everywhere: Sequence[float]) -> tuple[float, float]:
    """Return median and 90th percentile of a group's ratios, with the others' and the prior.

    All sequences are ascending. They stay separate, because merging all ratios for each of a
    hundred groups would take minutes.
    """
    weighted = (
        (own, 1.0),
        (everywhere, min(1 / 3, OTHERS_WEIGHT / max(1, len(everywhere)))),
        (PRIOR, PRIOR_WEIGHT / len(PRIOR)),
    )
    return _quantile(weighted, share=0.5), _quantile(weighted, share=0.9)


def _quantile(weighted: Sequence[tuple[Sequence[float], float]], *, share: float) -> float:
    """Return the smallest ratio up to which a share of the weight lies.

    Args:
        weighted: ascending ratios, and the weight of each of them.
        share: share of the total weight, from 0 to 1.
    """

    def up_to(ratio: float) -> float:
        return sum(weight * bisect_right(ratios, ratio) for ratios, weight in weighted)

    reached = share * sum(weight * len(ratios) for ratios, weight in weighted)
    # The smallest ratio of each sequence that reaches the share. The
    # smallest of these is the answer.
    firsts = ((ratios, bisect_left(ratios, reached, key=up_to)) for ratios, _ in weighted)
    return min(ratios[first] for ratios, first in firsts if first < len(ratios))


def grouped(
    *,
    simulated: Iterable[ExpectedStart],
    rough: Iterable[ExpectedStart],
    waiting: Mapping[str, Gang],
) -> list[GroupedStart]:
    """Return each forecast with its group: its queue, and whether it was rough.

    A simulated forecast without a start is left out, because the rough one replaces it.

    Args:
        simulated: forecasts of simulated cycles.
        rough: estimates for gangs that were not simulated.
        waiting: waiting gangs by name.
    """
    return [
        *(
            GroupedStart(start=start, group=waiting[start.uid].queue)
            for start in simulated
            if start.p50_at is not None
        ),
        *(GroupedStart(start=start, group=f"{waiting[start.uid].queue}/rough") for start in rough),
    ]
