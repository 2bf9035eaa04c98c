"""Forecasts of starts, corrected by what became of earlier ones.

A simulated future knows no job that comes later, and so its starts are too early wherever work
keeps coming: knowing how long every job runs would not help (docs/benchmarks.md). What does help is
to remember. For each forecast it is noted how much longer the wait was than said. Of these ratios
the median and the 90th percentile correct the next forecast, as in split conformal prediction
(Vovk et al., 2005): if delays go on as they did, nine in ten starts are before the p90, however
wrong the model.

    said 10, 20 and 40 min, were 15, 60 and 40 -> ratios 1.5, 3, 1; the next "10 min" is "15 min"

Ratios are learned for each group (a queue, and how the forecast was made), with a little of what
all groups had, and of `PRIOR`, which is all there is at the beginning. A job that waits already
longer than was said counts with what it has waited: only fast starts would be known otherwise.

Forecasts without an outcome are noted: a few of each waiting job, and a bounded sum of all. A job
that waits for days keeps its first forecasts and its newest. At the limit, the job with the most
notes gives up its oldest if it has at least two more than the new one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from drumline_scheduler.forecast.expected_starts import FARTHEST_SECONDS, ExpectedStart
from drumline_scheduler.model import Gang

PRIOR: Final = (0.6, 0.8, 1.0, 1.5, 2.5)
"""Ratios before anything is known: a forecast is half right, and may be early by 2.5 times."""
PRIOR_WEIGHT: Final = 5.0
"""As many observations is the prior worth in a group."""
OTHERS_WEIGHT: Final = 3.0
"""As many observations is worth, together, what all groups had; a third of each, if few."""
ALLOWANCE_SECONDS: Final = 60.0
"""Added to both waits before they are compared: a start in a second and in ten are the same."""
MOST_RATIOS: Final = 1000
"""The newest of a group that are remembered."""
NOTED_EACH_SECONDS: Final = 1800.0
"""How often a forecast of the same job is noted."""
MOST_OF_A_JOB: Final = 8
"""How many forecasts of the same job are remembered."""
MOST_NOTED: Final = 20_000
"""How many forecasts are remembered in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedForecast:
    """When somebody of a group was expected to start, and when that was said."""

    group: str
    made_at: float
    expected_at: float


@dataclass(slots=True, kw_only=True)
class ForecastNotes:
    """The forecasts of jobs that wait, by uid. All it does to a job is O(1)."""

    _noted: dict[str, list[NotedForecast]] = field(
        default_factory=dict[str, list[NotedForecast]], init=False
    )
    _with: tuple[dict[str, None], ...] = field(
        default_factory=lambda: tuple(dict[str, None]() for _ in range(MOST_OF_A_JOB + 1)),
        init=False,
    )
    """The uids that have so many notes, by that number."""
    _count: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[NotedForecast]:
        return chain.from_iterable(self._noted.values())

    @property
    def uids(self) -> Collection[str]:
        """The jobs that have notes."""
        return self._noted.keys()

    def add(self, uid: str, noted: NotedForecast) -> None:
        """Remember a forecast, unless the last of this job is recent or there is no room."""
        before = self._noted.get(uid, [])
        if before and noted.made_at < before[-1].made_at + NOTED_EACH_SECONDS:
            return
        if len(before) == MOST_OF_A_JOB:
            del before[MOST_OF_A_JOB // 2]
            before.append(noted)
        elif self._count < MOST_NOTED or self._make_room(beside=len(before)):
            self._set(uid, [*before, noted])

    def take(self, uid: str) -> list[NotedForecast]:
        """Those of a job, which are forgotten."""
        noted = self._noted.get(uid, [])
        self._set(uid, [])
        return noted

    def _make_room(self, *, beside: int) -> bool:
        """Forget the oldest of a job with most, if that has two more than `beside`."""
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
    """How much longer than forecast waits are: for each group the median, and nine in ten."""

    groups: Mapping[str, tuple[float, float]]
    elsewhere: tuple[float, float]
    """For a group of which nothing is known."""

    def of(self, grouped: GroupedStart, *, now: float) -> ExpectedStart:
        """The forecast, corrected. A p90 only moves away: the model knew why it was far.

        Neither is farther than `FARTHEST_SECONDS`: a limit may be longer than there are dates.
        """
        start = grouped.start
        if start.p50_at is None:
            return start
        half, most = self.groups.get(grouped.group, self.elsewhere)
        padded, farthest = _padded(now, start.p50_at), now + FARTHEST_SECONDS
        p50_at, latest = (
            now + max(0.0, ratio * padded - ALLOWANCE_SECONDS) for ratio in (half, most)
        )
        return ExpectedStart(
            key=start.key,
            uid=start.uid,
            p50_at=min(p50_at, farthest),
            p90_at=min(latest if start.p90_at is None else max(latest, start.p90_at), farthest),
        )


@dataclass(slots=True, kw_only=True)
class ForecastLearner:
    """Remembers forecasts until their jobs start, and what they were worth."""

    _notes: ForecastNotes = field(default_factory=ForecastNotes, init=False)
    _ratios: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]], init=False)

    def note(self, forecasts: Iterable[GroupedStart], *, now: float) -> None:
        """Remember forecasts, as they were before any correction."""
        for each in forecasts:
            if each.start.p50_at is not None:
                noted = NotedForecast(group=each.group, made_at=now, expected_at=each.start.p50_at)
                self._notes.add(each.start.uid, noted)

    @property
    def waiting(self) -> Collection[str]:
        """Uids of the jobs whose starts it wants to know."""
        return self._notes.uids

    def started(self, uid: str, *, at: float) -> None:
        """A job has started."""
        for noted in self._notes.take(uid):
            if at > noted.made_at:
                ratios = self._ratios.setdefault(noted.group, deque(maxlen=MOST_RATIOS))
                ratios.append(_ratio(noted, started_at=at))

    def left(self, uid: str) -> None:
        """A job waits no more, and did not start."""
        self._notes.take(uid)

    def correction(self, now: float) -> Correction:
        """What is known by now. O(n log n) of what is remembered, whatever number of groups."""
        seen = {group: list(ratios) for group, ratios in self._ratios.items()}
        for noted in self._notes:
            if now > noted.expected_at:
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
    """How many times as long as expected it waited."""
    return _padded(noted.made_at, started_at) / _padded(noted.made_at, noted.expected_at)


def _padded(since: float, until: float) -> float:
    return max(0.0, until - since) + ALLOWANCE_SECONDS


def _corrected(own: Sequence[float], *, everywhere: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile of a group's ratios, shrunk to the others' and the prior.

    All are ascending. They stay apart: all ratios merged anew for each group would take minutes
    with a hundred groups.
    """
    weighted = (
        (own, 1.0),
        (everywhere, min(1 / 3, OTHERS_WEIGHT / max(1, len(everywhere)))),
        (PRIOR, PRIOR_WEIGHT / len(PRIOR)),
    )
    return _quantile(weighted, share=0.5), _quantile(weighted, share=0.9)


def _quantile(weighted: Sequence[tuple[Sequence[float], float]], *, share: float) -> float:
    """The least ratio up to which that share of the weight lies.

    Args:
        weighted: ascending ratios, and how much each of them weighs.
        share: from 0 to 1.
    """

    def up_to(ratio: float) -> float:
        return sum(weight * bisect_right(ratios, ratio) for ratios, weight in weighted)

    reached = share * sum(weight * len(ratios) for ratios, weight in weighted)
    firsts = ((ratios, bisect_left(ratios, reached, key=up_to)) for ratios, _ in weighted)
    return min(ratios[first] for ratios, first in firsts if first < len(ratios))


def grouped(
    *,
    simulated: Iterable[ExpectedStart],
    rough: Iterable[ExpectedStart],
    waiting: Mapping[str, Gang],
) -> list[GroupedStart]:
    """Each forecast with its group: its queue, and whether it was rough.

    A simulated one that saw no start is left out: the rough one stands for it.
    """
    return [
        *(
            GroupedStart(start=start, group=waiting[start.uid].queue)
            for start in simulated
            if start.p50_at is not None
        ),
        *(GroupedStart(start=start, group=f"{waiting[start.uid].queue}/rough") for start in rough),
    ]
