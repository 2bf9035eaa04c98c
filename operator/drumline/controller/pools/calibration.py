"""Error of the planner in a pool: measured step times of its jobs over the predicted ones.

Agents report the figures, so they are tenant input. Medians count, everything is bounded, and only
predictions depend on it. A part of a step is compared if it is at least a hundredth of the step. A
job whose whole step is off by a factor of four is left out: that is a fault of the job, not of the
pool.

Each namespace has one vote, or each job if all jobs are in one namespace. Fewer than three votes do
not override the known figure. Two votes give the median with the known figure. One vote can move it
only towards 100. A job in two pools (`spot: Surplus`) has no vote in either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline_api.conditions import ConditionType
from drumline_contract import Progress, StepPart, StepPartSeconds

FIELD = "stepTimePercent"
MAX_PERCENT = 10_000
_LEAST_CHANGE_PERCENT = 2
"""Percent by which the figure may change without being written again."""
PARTS_FIELD = "stepParts"
_LEAST_PART_CHANGE_PERCENT = 5
_PART_PERCENT = (25, 400)
_FAULTY_STEP_FACTOR = 4.0
"""Factor, either way, by which a job's whole step may be off before its parts are ignored."""
_LEAST_PART_SHARE = 0.01
"""Least share of the predicted step for a part to be compared."""

PartVotes = dict[StepPart, list[float]]
"""Percent by part, one entry for each vote."""


def step_percents(jobs: Iterable[Job]) -> dict[str, int]:
    """Return measured over predicted step time in percent, by pool.

    Only running jobs with both figures count.
    """
    # Throughput is the inverse of step time: predicted over measured tokens per second.
    shares: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        status, assignment = job.status, job.status.assignment
        measured, predicted = status.tokens_per_second, status.predicted_tokens_per_second
        if assignment is None or not measured or not predicted:
            continue
        if _has_vote(job):
            shares[assignment.gpu_pool].append(predicted / measured)
    # The median, so that one job cannot move a pool's figure.
    return {
        pool: round(min(MAX_PERCENT, max(1.0, 100 * median(known))))
        for pool, known in shares.items()
    }


def part_votes(
    jobs: Iterable[Job], progress: Callable[[str], Progress | None]
) -> dict[str, PartVotes]:
    """Return the votes of running jobs about the parts of a step, by pool.

    Args:
        jobs: all jobs.
        progress: returns the progress that a job's agents reported last, by its uid.
    """
    # Group by pool, then by namespace, because a namespace has one vote.
    by_pool: dict[str, dict[str, list[dict[StepPart, float]]]] = {}
    for job in jobs:
        assignment = job.status.assignment
        if assignment is None or not _has_vote(job):
            continue
        known = progress(job.uid)
        percents = _part_percents(known.step_parts) if known is not None else {}
        if percents:
            spaces = by_pool.setdefault(assignment.gpu_pool, {})
            spaces.setdefault(job.namespace, []).append(percents)
    return {pool: _votes(list(spaces.values())) for pool, spaces in by_pool.items()}


def _has_vote(job: Job) -> bool:
    """Return whether a job has a vote: it runs, and in one pool only."""
    assignment = job.status.assignment
    spans = assignment is not None and assignment.surplus is not None
    return is_true(job.status, ConditionType.RUNNING) and not spans


def part_percent(votes: Sequence[float], *, known: int | None) -> int:
    """Return the figure of a part, from at least one vote and the earlier figure."""
    match len(votes):
        # One vote may only move the figure towards 100: it could be a tenant's fault.
        case 1 if known is not None:
            percent = min(votes[0], known, key=lambda value: abs(value - 100))
        case 2 if known is not None:
            percent = median((*votes, known))
        case _:
            percent = median(votes)
    low, high = _PART_PERCENT
    return round(min(high, max(low, percent)))


def part_fields(before: Mapping[str, Any], votes: PartVotes) -> dict[str, list[dict[str, Any]]]:
    """Return the parts for a pool's status: those with votes, and the others unchanged.

    Args:
        before: the current status of the pool.
        votes: votes of its running jobs.
    """
    known = known_parts(before)
    after = dict(known)
    # Small changes are not written, so that a status does not change with every observation.
    for part, percents in votes.items():
        percent = part_percent(percents, known=known.get(part))
        if part not in known or abs(percent - known[part]) >= _LEAST_PART_CHANGE_PERCENT:
            after[part] = percent
    entries = [{"part": str(part), "percent": after[part]} for part in StepPart if part in after]
    return {PARTS_FIELD: entries} if entries else {}


def known_parts(status: Mapping[str, Any]) -> dict[StepPart, int]:
    """Return the parts in a pool's status. Parts that this version does not know are skipped."""
    names = {str(part): part for part in StepPart}
    return {
        names[entry["part"]]: entry["percent"]
        for entry in status.get(PARTS_FIELD) or ()
        if entry.get("part") in names and isinstance(entry.get("percent"), int)
    }


def _part_percents(parts: Sequence[StepPartSeconds]) -> dict[StepPart, float]:
    measured = sum(part.measured for part in parts)
    predicted = sum(part.predicted for part in parts)
    if (
        predicted <= 0
        or not predicted / _FAULTY_STEP_FACTOR <= measured <= predicted * _FAULTY_STEP_FACTOR
    ):
        return {}
    return {
        part.part: 100 * max(0.0, part.measured) / part.predicted
        for part in parts
        if part.predicted >= _LEAST_PART_SHARE * predicted
    }


def _votes(namespaces: Sequence[Sequence[Mapping[StepPart, float]]]) -> PartVotes:
    # With one namespace each of its jobs votes, otherwise each namespace does.
    voters = namespaces if len(namespaces) > 1 else [[job] for job in namespaces[0]]
    votes: PartVotes = {}
    for voter in voters:
        for part in StepPart:
            percents = [job[part] for job in voter if part in job]
            if percents:
                votes.setdefault(part, []).append(median(percents))
    return votes


def calibration_fields(before: Mapping[str, Any], percent: int | None) -> dict[str, int]:
    """Return the field of a pool's status.

    The figure stays if it hardly changed, or if no job has a vote.

    Args:
        before: the current status of the pool.
        percent: figure of its running jobs, or None.
    """
    known = before.get(FIELD)
    if percent is None:
        return {FIELD: known} if isinstance(known, int) else {}
    if isinstance(known, int) and abs(percent - known) < _LEAST_CHANGE_PERCENT:
        percent = known
    return {FIELD: percent}
