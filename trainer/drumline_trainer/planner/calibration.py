"""Finding the global constants: one set for all rows, by a pattern search without randomness.

What is minimized is the mean absolute logarithm of predicted over measured time, of each row at
most `_OUTLIER`: a run that met a fault of its machine says nothing about the model. Every constant
has bounds that physics sets. O(rounds · constants · rows).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from drumline_trainer.contract import StepPart
from drumline_trainer.planner.constants import Constants, PoolConstants
from drumline_trainer.planner.measured_rows import Measured
from drumline_trainer.planner.step_time import step_time

BOUNDS: dict[str, tuple[float, float]] = {
    "matmul": (0.5, 0.92),
    "half_width": (16.0, 2000.0),
    "passes": (1.0, 6.0),
    "kernel": (1e-6, 20e-6),
    "domain": (0.3, 0.85),
    "network": (0.3, 0.95),
    "latency": (1.0, 8.0),
    "step": (0.002, 0.05),
}
"""Shares of line rates that collectives were never seen above, times no kernel start is below."""
_OUTLIER = 0.35
_AXES = (
    StepPart.TENSOR,
    StepPart.CONTEXT,
    StepPart.EXPERT,
    StepPart.DATA,
    StepPart.PIPELINE,
)


def loss(rows: Sequence[Measured], constants: Constants) -> float:
    """How far predictions are off; see above."""
    errors = [
        abs(math.log(step_time(row.setup, row.cluster, constants=constants).seconds / row.seconds))
        for row in rows
        if row.seconds is not None
    ]
    return sum(min(error, _OUTLIER) for error in errors) / len(errors)


def fit(
    rows: Sequence[Measured], *, start: Constants, first: float = 0.5, last: float = 0.02
) -> Constants:
    """The constants nearest to `start` that no step of the share `last` on one of them betters.

    Args:
        rows: measured iterations.
        start: where to begin.
        first: share by which constants are changed at first.
        last: the smallest change that is tried.
    """
    constants, best, step = start, loss(rows, start), first
    while step >= last:
        better = False
        for name, (low, high) in BOUNDS.items():
            for factor in (1 + step, 1 / (1 + step)):
                value = min(high, max(low, getattr(constants, name) * factor))
                changed: Constants = replace(constants, **{name: value})
                now = loss(rows, changed)
                if now < best - 1e-7:
                    constants, best, better = changed, now, True
        if not better:
            step /= 2
    return constants


def calibrated(constants: Constants, factors: Mapping[StepPart, float]) -> PoolConstants:
    """Constants for a pool whose jobs measured these parts at so many times what was predicted.

    Computing is slower by its factor. Links are faster by the least of the axes' factors, where
    that is below 1, and what an axis takes beyond that is added to its exposed messages: so lower
    bounds of the search stay lower bounds. The bubble of a pipeline follows from its passes.

    Args:
        constants: the global ones.
        factors: measured over predicted seconds; 1 where a part is absent.
    """
    computing = factors.get(StepPart.COMPUTE, 1.0)
    axes = {part: factors.get(part, 1.0) for part in _AXES}
    links = min(1.0, *axes.values())
    parts = {part: factor / links for part, factor in axes.items()}
    parts |= {StepPart.OPTIMIZER: factors.get(StepPart.OPTIMIZER, 1.0)}
    return PoolConstants(
        matmul=constants.matmul / computing,
        half_width=constants.half_width,
        passes=constants.passes * computing,
        kernel=constants.kernel * computing,
        domain=constants.domain / links,
        network=constants.network / links,
        latency=constants.latency * links,
        step=constants.step * factors.get(StepPart.REST, 1.0),
        parts=tuple(parts.items()),
    )


def rescaled(constants: Constants, *, measured_over_predicted: float) -> Constants:
    """Constants for a pool whose steps take so many times what was predicted.

    Everything slows down alike: it is the whole pool that differs, not a part of a step.
    """
    share = measured_over_predicted
    return replace(
        constants,
        matmul=constants.matmul / share,
        passes=constants.passes * share,
        kernel=constants.kernel * share,
        domain=constants.domain / share,
        network=constants.network / share,
        latency=constants.latency * share,
        step=constants.step * share,
    )
