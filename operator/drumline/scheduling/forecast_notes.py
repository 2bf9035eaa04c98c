"""Forecasts that have no outcome yet: of each waiting job a few, and of all together a bounded sum.

A job that waits for days is noted again and again. It keeps its first forecasts and its newest.
Once as many are remembered as may be, whoever has more shares with whoever has less: a job that
has at least two more gives up its oldest. So those that wait long leave room for new jobs, and
nobody takes from another what that takes back in the next round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

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
