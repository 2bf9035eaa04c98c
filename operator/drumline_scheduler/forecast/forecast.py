"""One forecast of expected starts, and the rule when it has to be made again.

A forecast takes many cycles. A new one would be equal while only the clock changes. So it is made
again only after another change, or when time has shown it wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.model import Admitted
from drumline_scheduler.quota.usage_budgets import Budgets

FIRST_PAUSE_SECONDS: Final = 60.0
OLDEST_SECONDS: Final = 1800.0
"""Largest age of a forecast: the usage history changes with time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One forecast."""

    cycle: CycleInput
    """The arguments of `expected_starts`; a later forecast has the same policy."""
    starts: tuple[ExpectedStart, ...]
    repeats: int = 0
    """Number of forecasts in a row before it that were made from equal arguments."""

    def repeats_for(self, cycle: CycleInput) -> int:
        """Return `repeats` of the next forecast."""
        return self.repeats + 1 if _only_time_passed(self.cycle, cycle) else 0

    def is_current(self, cycle: CycleInput) -> bool:
        """Return whether a new forecast from these arguments would be no better.

        It would not while no expected start has passed. If a start was expected and nothing
        changed, each next forecast is valid twice as long as the one before: 60 s, 120 s, 240 s.
        """
        now, made_at = cycle.now, self.cycle.now
        if not 0 <= now - made_at < OLDEST_SECONDS:
            return False
        # A missed start means a wrong forecast. Repeating it from equal
        # arguments at once would not help.
        pause = FIRST_PAUSE_SECONDS * 2.0**self.repeats
        passed = any(each.p50_at is not None and each.p50_at <= now for each in self.starts)
        if now - made_at >= pause and passed:
            return False
        return _only_time_passed(self.cycle, cycle) and _spent(cycle) == _spent(self.cycle)


def _only_time_passed(cycle: CycleInput, other: CycleInput) -> bool:
    """Return whether the clusters differ only by usage history and work at risk.

    O(nodes + gangs), and fast if most of them are the same objects.
    """
    mine, theirs = cycle.snapshot, other.snapshot
    return (
        cycle.pending == other.pending
        and mine.nodes == theirs.nodes
        and mine.pools == theirs.pools
        and mine.queues == theirs.queues
        and len(mine.admitted) == len(theirs.admitted)
        and all(map(_holds_the_same, mine.admitted, theirs.admitted))
    )


def _holds_the_same(held: Admitted, other: Admitted) -> bool:
    if held is other:
        return True
    return replace(held, gpu_seconds_at_risk=other.gpu_seconds_at_risk) == other


def _spent(cycle: CycleInput) -> frozenset[tuple[str, str | None]]:
    """Return the budgets that are spent: time alone spends them, and refills them."""
    return Budgets(cycle.snapshot, now=cycle.now).spent
