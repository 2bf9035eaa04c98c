"""Figures made of an outcome: use of the cluster, waits, fairness.

Two words about time. The *loaded* part of a simulation goes from the first submission to the last
one: afterwards a cluster only drains, and a utilisation that counted the drain would say how long
the last job was. Waiting is all the time in which a job existed and held no places, also between
two runs; a job that never started waits until the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from drumline.scheduling import Queue
from drumline.simulator.results.outcome import JobRecord, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One simulation in a line."""

    jobs: int
    never_started: int
    utilisation: float
    """Of all GPUs in the loaded part: held by jobs."""
    makespan_seconds: float
    mean_wait_seconds: float
    median_wait_seconds: float
    p95_wait_seconds: float
    largest_p95_wait_seconds: float
    """Of the tenth of the jobs with the most GPUs."""
    preempted: int
    lost_share: float
    """Of all GPU-seconds that were held: work that had to be done again."""
    start_error: float | None
    """How far expected starts were off, as a part of the wait that was left: the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """A queue's part in the loaded time, all of them as fractions."""

    queue: str
    asked: float
    """Of all work that was submitted."""
    had: float
    """Of all GPU-seconds that were held."""
    due: float
    """Its weight among the queues that had jobs."""


def summary(outcome: Outcome) -> Summary:
    """The line about an outcome."""
    waits = sorted(job.waited_seconds(outcome.ended_at) for job in outcome.jobs)
    largest = sorted(job.waited_seconds(outcome.ended_at) for job in largest_tenth(outcome.jobs))
    held = sum(span.gpus * (span.ends_at - span.begins_at) for span in outcome.spans)
    lost = sum(job.lost_gpu_seconds for job in outcome.jobs)
    errors = start_errors(outcome)
    return Summary(
        jobs=len(outcome.jobs),
        never_started=sum(job.started_at is None for job in outcome.jobs),
        utilisation=utilisation(outcome),
        makespan_seconds=outcome.ended_at - outcome.began_at,
        mean_wait_seconds=sum(waits) / len(waits) if waits else 0.0,
        median_wait_seconds=quantile(waits, 0.5),
        p95_wait_seconds=quantile(waits, 0.95),
        largest_p95_wait_seconds=quantile(largest, 0.95),
        preempted=sum(job.preempted for job in outcome.jobs),
        lost_share=lost / held if held else 0.0,
        start_error=quantile(errors, 0.5) if errors else None,
    )


def quantile(ascending: Sequence[float], part: float) -> float:
    """The smallest value that is not below `part` of them; 0 of none."""
    if not ascending:
        return 0.0
    return ascending[max(0, -int(-part * len(ascending) // 1) - 1)]


def largest_tenth(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """The tenth of the jobs with the most GPUs, of equal ones those with the most work."""
    ordered = sorted(jobs, key=lambda job: (-job.gpus, -job.duration_seconds, job.uid))
    return ordered[: -(-len(ordered) // 10)]


def utilisation(outcome: Outcome) -> float:
    """GPU-seconds held over GPU-seconds there were, in the loaded part."""
    there = outcome.gpus * (outcome.last_submission - outcome.began_at)
    return sum(_loaded(outcome).values()) / there if there else 0.0


def portions(outcome: Outcome, queues: Sequence[Queue]) -> list[Portion]:
    """What each queue that had jobs asked for, had and was due, by name."""
    work: dict[str, float] = defaultdict(float)
    for job in outcome.jobs:
        work[job.queue] += job.gpus * job.duration_seconds
    held = _loaded(outcome)
    weights = {queue.name: queue.weight for queue in queues if queue.name in work}
    return [
        Portion(
            queue=name,
            asked=_part(work[name], sum(work.values())),
            had=_part(held.get(name, 0.0), sum(held.values())),
            due=_part(weights.get(name, 0.0), sum(weights.values())),
        )
        for name in sorted(work)
    ]


def use_over_time(outcome: Outcome, *, bins: int) -> tuple[list[float], list[float]]:
    """Mean use, as a fraction of all GPUs, in so many equal parts of the whole simulation.

    Returns:
        The middles of the parts in seconds since the beginning, and the use in each. O(spans).
    """
    length = (outcome.ended_at - outcome.began_at) / bins or 1.0
    held = [0.0] * (bins + 1)
    slope = [0.0] * (bins + 2)
    for span in outcome.spans:
        first, inside = divmod(span.begins_at - outcome.began_at, length)
        last, ahead = divmod(span.ends_at - outcome.began_at, length)
        slope[int(first)] += span.gpus
        held[int(first)] -= span.gpus * inside / length
        slope[int(last)] -= span.gpus
        held[int(last)] += span.gpus * ahead / length
    level, use = 0.0, list[float]()
    for number in range(bins):
        level += slope[number]
        use.append((level + held[number]) / outcome.gpus if outcome.gpus else 0.0)
    return [(number + 0.5) * length for number in range(bins)], use


def waits_by_size(outcome: Outcome) -> list[tuple[int, list[float]]]:
    """The waits of all jobs of each number of GPUs, ascending."""
    found: dict[int, list[float]] = defaultdict(list)
    for job in outcome.jobs:
        found[job.gpus].append(job.waited_seconds(outcome.ended_at))
    return [(gpus, sorted(found[gpus])) for gpus in sorted(found)]


def start_errors(outcome: Outcome) -> list[float]:
    """How far each promise of a start was off, as a fraction of the wait that was left; sorted."""
    return sorted(
        abs(one.expected_at - one.started_at) / (one.started_at - one.told_at)
        for one in outcome.promises
        if one.started_at > one.told_at
    )


def _loaded(outcome: Outcome) -> dict[str, float]:
    """GPU-seconds that each queue held until the last submission."""
    until = outcome.last_submission
    held: dict[str, float] = defaultdict(float)
    for span in outcome.spans:
        seconds = min(span.ends_at, until) - span.begins_at
        if seconds > 0:
            held[outcome.jobs[span.job].queue] += span.gpus * seconds
    return dict(held)


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0
