"""What a forecast was made from, and when it is worth making again.

A forecast takes many cycles. At rest it would say the same again, so it is made again only where
something else than the clock changed, or where time has shown it wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from drumline.scheduling.forecast import ExpectedStart
from drumline.scheduling.model import Admitted, Gang, Snapshot
from drumline.scheduling.quota.budgets import Budgets

FIRST_PAUSE_SECONDS: Final = 60.0
OLDEST_SECONDS: Final = 1800.0
"""A forecast is made again after that long, whatever happens: the usage history changes by time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInputs:
    """What `expected_starts` reads, but for the clock and the policy, which stays."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]

    def is_like(self, other: ForecastInputs) -> bool:
        """Whether only time passed: the usage history and the work at risk grow by themselves.

        O(nodes + gangs), and cheap where most of them are the same objects.
        """
        mine, theirs = self.snapshot, other.snapshot
        return (
            self.pending == other.pending
            and mine.nodes == theirs.nodes
            and mine.pools == theirs.pools
            and mine.queues == theirs.queues
            and len(mine.admitted) == len(theirs.admitted)
            and all(map(_holds_the_same, mine.admitted, theirs.admitted))
        )

    def spent_budgets(self, now: float) -> frozenset[tuple[str, str | None]]:
        """Which budgets are spent: time alone spends them, and gives them back."""
        return Budgets(self.snapshot, now=now).spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One forecast.

    Attributes:
        inputs: what it was made from.
        made_at: the moment of its inputs.
        starts: what it says.
        repeats: how many forecasts before it were made from the same inputs.
    """

    inputs: ForecastInputs
    made_at: float
    starts: tuple[ExpectedStart, ...]
    repeats: int = 0

    def repeats_for(self, inputs: ForecastInputs) -> int:
        """`repeats` of the next forecast."""
        return self.repeats + 1 if self.inputs.is_like(inputs) else 0

    def stands(self, inputs: ForecastInputs, *, now: float) -> bool:
        """Whether it is as good as a new one.

        As long as nobody was expected to have started by now, yes. Where nothing ends although ends
        were expected, each next forecast of the same inputs has twice the time of the one before
        it: 60 s, 120 s, 240 s and so on.
        """
        passed = now - self.made_at
        if not 0 <= passed < OLDEST_SECONDS:
            return False
        pause = FIRST_PAUSE_SECONDS * 2.0**self.repeats
        if passed >= pause and _has_passed(self.starts, now=now):
            return False
        return self.inputs.is_like(inputs) and inputs.spent_budgets(now) == (
            self.inputs.spent_budgets(self.made_at)
        )


def _has_passed(starts: Iterable[ExpectedStart], *, now: float) -> bool:
    return any(start.p50_at is not None and start.p50_at <= now for start in starts)


def _holds_the_same(held: Admitted, other: Admitted) -> bool:
    if held is other:
        return True
    return replace(held, gpu_seconds_at_risk=other.gpu_seconds_at_risk) == other
