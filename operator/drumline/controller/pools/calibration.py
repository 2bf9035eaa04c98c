"""How far the planner is off in a pool: measured step times of its jobs over the predicted ones.

The figures are the agents', so a tenant's: medians count, everything is bounded, and nothing but
predictions depends on it. Parts of a step are compared where they are a hundredth of it, of jobs
whose whole step is not off by four times: that is a fault of the job, not of the pool. Each
namespace has one vote, or each job where all are of one. Fewer than three votes do not outvote what
is known: of two it is the median with the known figure, and one alone moves it only towards 100.
A job over two pools (`spot: Surplus`) says nothing of either.
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
_STILL = 2
"""Percent by which the figure may move without being written again."""
PARTS_FIELD = "stepParts"
_PART_STILL = 5
_PART_PERCENT = (25, 400)
_FAULTY = 4.0
"""Times that a job's whole step is off, either way, by which its parts say nothing."""
_TELLING = 0.01
"""Share of the predicted step from which a part is compared."""

PartVotes = dict[StepPart, list[float]]
"""Percent by part, one for each vote."""


def step_percents(jobs: Iterable[Job]) -> dict[str, int]:
    """By pool, where a running job has both figures: measured step time over the predicted."""
    shares: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        status, assignment = job.status, job.status.assignment
        measured, predicted = status.tokens_per_second, status.predicted_tokens_per_second
        if assignment is None or not measured or not predicted:
            continue
        if _tells(job):
            shares[assignment.gpu_pool].append(predicted / measured)
    return {
        pool: round(min(MAX_PERCENT, max(1.0, 100 * median(known))))
        for pool, known in shares.items()
    }


def part_votes(
    jobs: Iterable[Job], progress: Callable[[str], Progress | None]
) -> dict[str, PartVotes]:
    """By pool: what its running jobs say of each part of a step.

    Args:
        jobs: all there are.
        progress: what the agents of a job reported last, by its uid.
    """
    said: dict[str, dict[str, list[dict[StepPart, float]]]] = {}
    for job in jobs:
        assignment = job.status.assignment
        if assignment is None or not _tells(job):
            continue
        known = progress(job.uid)
        percents = _part_percents(known.step_parts) if known is not None else {}
        if percents:
            spaces = said.setdefault(assignment.gpu_pool, {})
            spaces.setdefault(job.namespace, []).append(percents)
    return {pool: _votes(list(spaces.values())) for pool, spaces in said.items()}


def _tells(job: Job) -> bool:
    """Whether its steps say something of its pool: it runs, and in no other pool beside."""
    assignment = job.status.assignment
    spans = assignment is not None and assignment.surplus is not None
    return is_true(job.status, ConditionType.RUNNING) and not spans


def part_percent(votes: Sequence[float], *, known: int | None) -> int:
    """The figure of a part, by its votes (at least one) and what was known of it before."""
    match len(votes):
        case 1 if known is not None:
            percent = min(votes[0], known, key=lambda value: abs(value - 100))
        case 2 if known is not None:
            percent = median((*votes, known))
        case _:
            percent = median(votes)
    low, high = _PART_PERCENT
    return round(min(high, max(low, percent)))


def part_fields(before: Mapping[str, Any], votes: PartVotes) -> dict[str, list[dict[str, Any]]]:
    """The parts in a pool's status: those that jobs speak of, and the others as they were.

    Args:
        before: the pool's status.
        votes: of its running jobs.
    """
    known = known_parts(before)
    after = dict(known)
    for part, percents in votes.items():
        percent = part_percent(percents, known=known.get(part))
        if part not in known or abs(percent - known[part]) >= _PART_STILL:
            after[part] = percent
    entries = [{"part": str(part), "percent": after[part]} for part in StepPart if part in after]
    return {PARTS_FIELD: entries} if entries else {}


def known_parts(status: Mapping[str, Any]) -> dict[StepPart, int]:
    """The parts in a pool's status; what is no part of this version is passed over."""
    names = {str(part): part for part in StepPart}
    return {
        names[entry["part"]]: entry["percent"]
        for entry in status.get(PARTS_FIELD) or ()
        if entry.get("part") in names and isinstance(entry.get("percent"), int)
    }


def _part_percents(parts: Sequence[StepPartSeconds]) -> dict[StepPart, float]:
    measured = sum(part.measured for part in parts)
    predicted = sum(part.predicted for part in parts)
    if predicted <= 0 or not predicted / _FAULTY <= measured <= predicted * _FAULTY:
        return {}
    return {
        part.part: 100 * max(0.0, part.measured) / part.predicted
        for part in parts
        if part.predicted >= _TELLING * predicted
    }


def _votes(namespaces: Sequence[Sequence[Mapping[StepPart, float]]]) -> PartVotes:
    voters = namespaces if len(namespaces) > 1 else [[job] for job in namespaces[0]]
    votes: PartVotes = {}
    for voter in voters:
        for part in StepPart:
            percents = [job[part] for job in voter if part in job]
            if percents:
                votes.setdefault(part, []).append(median(percents))
    return votes


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
