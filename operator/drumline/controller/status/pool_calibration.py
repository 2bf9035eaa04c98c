"""How far the planner is off in a pool: measured step times of its jobs over the predicted ones.

The figures are the agents', so a tenant's: each job counts once, the median of the jobs counts, and
nothing but predictions depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from drumline.api.conditions import ConditionType
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job

FIELD = "stepTimePercent"
MAX_PERCENT = 10_000
_STILL = 2
"""Percent by which the figure may move without being written again."""


def step_percents(jobs: Iterable[Job]) -> dict[str, int]:
    """By pool, where a running job has both figures: measured step time over the predicted."""
    shares: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        status, assignment = job.status, job.status.assignment
        measured, predicted = status.tokens_per_second, status.predicted_tokens_per_second
        if assignment is None or not measured or not predicted:
            continue
        if is_true(status, ConditionType.RUNNING):
            shares[assignment.gpu_pool].append(predicted / measured)
    return {
        pool: round(min(MAX_PERCENT, max(1.0, 100 * median(known))))
        for pool, known in shares.items()
    }


def calibration_fields(before: Mapping[str, Any], percent: int | None) -> dict[str, int]:
    """The field of a pool's status; as it was where it hardly moved, or where no job says more.

    Args:
        before: the pool's status.
        percent: of its running jobs.
    """
    known = before.get(FIELD)
    if percent is None:
        return {FIELD: known} if isinstance(known, int) else {}
    if isinstance(known, int) and abs(percent - known) < _STILL:
        percent = known
    return {FIELD: percent}
