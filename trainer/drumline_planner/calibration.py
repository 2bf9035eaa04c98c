"""Constants for one pool, from measurements of its own jobs.

The global constants were found once, on published measurements (`constants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from drumline_contract import StepPart
from drumline_planner.constants import Constants, PoolConstants

_AXES = (
    StepPart.TENSOR,
    StepPart.CONTEXT,
    StepPart.EXPERT,
    StepPart.DATA,
    StepPart.PIPELINE,
)


def calibrated(constants: Constants, factors: Mapping[StepPart, float]) -> PoolConstants:
    """Return constants for a pool whose jobs measured these parts.

    Computing is slower by its factor. Links are faster by the smallest of the axes' factors, if
    that is below 1. Any further time of an axis is added to its exposed messages. So lower bounds
    of the search stay lower bounds. The bubble of a pipeline follows from its passes.

    Args:
        constants: the global constants.
        factors: measured over predicted seconds; 1 for a part that is absent.
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
    """Return constants for a pool whose steps take longer than predicted by a factor.

    Everything slows down alike, because the whole pool differs and not a part of a step.
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
