"""Parse steps, losses and rates by the user's own patterns. Pure: the caller has the clock.

Step and loss may be on different lines. A figure that a line does not contain stays unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from drumline_agent.commands.line_matcher import LineMatcher, TooMuchWorkError
from drumline_agent.commands.pattern_watch import PatternWatch
from drumline_agent.commands.progress_lines import MAX_CHARS, MAX_STEP, ProgressLine
from drumline_agent.commands.token_bucket import TokenBucket
from drumline_contract import LinePattern

WORK_PER_SECOND: Final = 20_000
"""Instructions of patterns in a pod: about 3 % of a processor. A line of a log takes some hundred;
lines beyond that are not looked at."""
BURST_WORK: Final = 60_000


def work_budget() -> TokenBucket:
    """Return the budget that the patterns of all processes of a pod share."""
    return TokenBucket(per_second=WORK_PER_SECOND, burst=BURST_WORK)


class PatternReader:
    """Reads the lines of one process in order."""

    def __init__(
        self,
        patterns: Sequence[LinePattern],
        *,
        budget: TokenBucket,
        watch: PatternWatch,
        clock: Callable[[], float],
    ) -> None:
        """Start without any known figure.

        Args:
            patterns: the first that matches a line is used.
            budget: budget of the pod.
            watch: watch of the pod; is notified which patterns match.
            clock: clock in seconds.
        """
        self._matchers = [(pattern.groups, LineMatcher(pattern)) for pattern in patterns]
        self._budget = budget
        self._watch = watch
        self._clock = clock
        self._step: int | None = None
        self._total_steps = 0
        self._loss: float | None = None
        self._not_finite = ""
        self._rate: float | None = None

    def read(self, line: str) -> ProgressLine | None:
        """Return the progress after this line. None: no new figure, or no step is known."""
        groups = self._groups(line[:MAX_CHARS])
        if groups is None:
            return None
        step, total = _step(groups.get("step")), _step(groups.get("totalSteps"))
        loss, rate = _number(groups.get("loss")), _number(groups.get("tokensPerSecond"))
        # Figures of one step may be spread over lines, so each line updates what it has.
        if "loss" in groups:
            self._not_finite = not_finite(groups["loss"])
        self._step = self._step if step is None else step
        self._total_steps = self._total_steps if total is None else total
        self._loss = self._loss if loss is None else loss
        self._rate = self._rate if rate is None else rate
        if self._step is None:
            return None
        return ProgressLine(
            step=self._step,
            total_steps=self._total_steps,
            loss=None if self._not_finite else self._loss,
            not_finite=self._not_finite,
            tokens_per_second=self._rate,
        )

    def _groups(self, line: str) -> Mapping[str, str] | None:
        for names, matcher in self._matchers:
            now = self._clock()
            if not self._budget.take(now=now):
                return None
            try:
                groups = matcher.search(line)
            except TooMuchWorkError:
                groups = None
            self._budget.charge(matcher.work, now=now)
            if groups is not None:
                self._watch.read(names)
                return groups
        return None


def not_finite(text: str) -> str:
    """Return nan or inf if a loss is one of these, otherwise the empty string."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return ""
    return "" if math.isfinite(value) else "nan" if math.isnan(value) else "inf"


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _step(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None or value < 0 else int(min(value, MAX_STEP))
