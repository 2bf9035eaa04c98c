"""Choose the number of GPUs: the fastest, the cheapest, or the cheapest within a deadline.

Cost is GPU-seconds for each token, whatever the price of a GPU-hour. It nearly always rises with
the number of GPUs, so only a deadline is a reason for more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from drumline_planner.search import Planned
from drumline_planner.words import large

_DAY = 86_400.0


class Objective(StrEnum):
    """Quantity to minimize."""

    TIME = "time"
    COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPlan:
    """The best layout of a number of GPUs."""

    gpus: int
    planned: Planned

    @property
    def gpu_seconds_per_token(self) -> float:
        """Cost in GPU-seconds for each token."""
        return self.gpus / self.planned.time.tokens_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A run, and the time by which it must be done."""

    tokens: float
    days: float

    def met_by(self, sized: SizedPlan) -> bool:
        """Return whether the plan meets the deadline."""
        return run_days(sized, self.tokens) <= self.days


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedSize:
    """The chosen number of GPUs."""

    sized: SizedPlan
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSize:
    """No number of GPUs meets the deadline."""

    reason: str


def pick_size(
    curve: Sequence[tuple[int, Planned | None]],
    *,
    objective: Objective,
    deadline: Deadline | None = None,
) -> PickedSize | NoSize:
    """Return the number of GPUs by time or cost, among those that meet the deadline.

    Args:
        curve: numbers of GPUs with their best layout.
        objective: time or cost.
        deadline: time by which the run must end.
    """
    plans = [SizedPlan(gpus=gpus, planned=planned) for gpus, planned in curve if planned]
    numbers = f"{curve[0][0]} to {curve[-1][0]} GPUs"
    if not plans:
        return NoSize(reason=f"No layout fits on {numbers}.")
    fastest = min(plans, key=lambda sized: 1 / sized.planned.time.tokens_per_second)
    inside = [sized for sized in plans if deadline is None or deadline.met_by(sized)]
    if not inside:
        assert deadline is not None  # noqa: S101 - without one all are inside
        return NoSize(
            reason=f"{large(deadline.tokens)} tokens in {deadline.days:g} days are not possible"
            f" on {numbers}. The fastest are {fastest.gpus} with"
            f" {run_days(fastest, deadline.tokens):.1f} days. Use more GPUs, a larger"
            " batch or fp8."
        )
    if objective is Objective.TIME:
        return PickedSize(sized=fastest, reason=f"The fastest of {numbers}: {fastest.gpus}.")
    cheapest = min(inside, key=lambda sized: (sized.gpu_seconds_per_token, sized.gpus))
    share = 100 * cheapest.gpu_seconds_per_token / fastest.gpu_seconds_per_token
    reason = f"The cheapest of {numbers}: {cheapest.gpus}"
    if deadline is not None:
        reason += f", done in {run_days(cheapest, deadline.tokens):.1f} of {deadline.days:g} days"
    if cheapest.gpus != fastest.gpus:
        reason += f", for {share:.0f} % of the GPU-hours of the fastest ({fastest.gpus})"
    return PickedSize(sized=cheapest, reason=reason + ".")


def run_days(sized: SizedPlan, tokens: float) -> float:
    """Return the days of a run with a number of tokens."""
    return tokens / sized.planned.time.tokens_per_second / _DAY
