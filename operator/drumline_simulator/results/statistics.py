"""Compute statistics of an outcome: utilisation, waits, fairness.

The *loaded* part of a simulation goes from the first to the last submission. Afterwards a cluster
only drains, and a utilisation that counted the drain would measure the length of the last job.
Waiting is all the time in which a job existed and held no nodes, also between two runs. A job that
never started waits until the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from drumline_scheduler import Queue
from drumline_scheduler.forecast.accuracy import Calibration, calibration
from drumline_simulator.results.outcome import JobRecord, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One simulation in a line. The field names are those of `drumline simulate -o json`."""

    jobs: int
    never_started: int
    utilisation: float
    """Fraction of the GPU-seconds of the loaded part that jobs held."""
    makespan_seconds: float
    mean_wait_seconds: float
    median_wait_seconds: float
    p95_wait_seconds: float
    largest_p95_wait_seconds: float
    """95th percentile for the tenth of the jobs with the most GPUs."""
    preempted: int
    lost_share: float
    """Fraction of all held GPU-seconds whose work was repeated."""
    starts: Calibration | None
    """Accuracy of expected starts. None: none was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShare:
    """A queue's share of the loaded part. All values are fractions."""

    queue: str
    requested: float
    """Fraction of all submitted work."""
    held: float
    """Fraction of all held GPU-seconds."""
    weight_share: float
    """Fraction of the weights of all queues with jobs."""


def summary(outcome: Outcome) -> Summary:
    """Summarise an outcome."""
    # Jobs that never started wait until the end, so leaving them out would hide starvation.
    waits = sorted(job.waited_seconds(outcome.ended_at) for job in outcome.jobs)
    largest = sorted(job.waited_seconds(outcome.ended_at) for job in largest_tenth(outcome.jobs))
    # Held, not useful: the share of lost work is of what was paid for.
    held = sum(
        allocation.gpus * (allocation.ends_at - allocation.begins_at)
        for allocation in outcome.allocations
    )
    lost = sum(job.lost_gpu_seconds for job in outcome.jobs)
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
        starts=calibration(outcome.forecasts) if outcome.forecasts else None,
    )


def quantile(ascending: Sequence[float], part: float) -> float:
    """Return the smallest value that at least `part` of the values do not exceed, or 0."""
    if not ascending:
        return 0.0
    # The nearest rank: `quantile([1, 2, 3, 4], 0.5) == 2`, never a mean of two waits.
    return ascending[max(0, -int(-part * len(ascending) // 1) - 1)]


def largest_tenth(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the tenth of the jobs with the most GPUs. Ties go to the most work."""
    # Work breaks ties, so the longest jobs of the cut size count.
    ordered = sorted(jobs, key=lambda job: (-job.gpus, -job.duration_seconds, job.uid))
    # Ceiling: with fewer than ten jobs, the largest one is the tenth.
    return ordered[: -(-len(ordered) // 10)]


def utilisation(outcome: Outcome) -> float:
    """Return GPU-seconds held over GPU-seconds available, in the loaded part."""
    # The drain after the last submission is left out, as in the module's definition.
    available = outcome.gpus * (outcome.last_submission - outcome.began_at)
    return sum(_loaded(outcome).values()) / available if available else 0.0


def queue_shares(outcome: Outcome, queues: Sequence[Queue]) -> list[QueueShare]:
    """Return the share of each queue with jobs, sorted by name."""
    # Requested work does not depend on the policy, so it is the same in each chart.
    work: dict[str, float] = defaultdict(float)
    for job in outcome.jobs:
        work[job.queue] += job.gpus * job.duration_seconds
    held = _loaded(outcome)
    # Queues without jobs get no share, because they could not have used one.
    weights = {queue.name: queue.weight for queue in queues if queue.name in work}
    return [
        QueueShare(
            queue=name,
            requested=_part(work[name], sum(work.values())),
            held=_part(held.get(name, 0.0), sum(held.values())),
            weight_share=_part(weights.get(name, 0.0), sum(weights.values())),
        )
        for name in sorted(work)
    ]


def use_over_time(outcome: Outcome, *, bins: int) -> tuple[list[float], list[float]]:
    """Return the mean utilisation in `bins` equal parts of the simulation. O(allocations).

    Returns:
        Middles of the parts in seconds since the beginning, and the fraction in each.
    """
    # An outcome without time has one bin of one second.
    length = (outcome.ended_at - outcome.began_at) / bins or 1.0
    held = [0.0] * (bins + 1)
    # Differences instead of bins per allocation: a long allocation costs as much as a short one.
    slope = [0.0] * (bins + 2)
    for allocation in outcome.allocations:
        first, inside = divmod(allocation.begins_at - outcome.began_at, length)
        last, ahead = divmod(allocation.ends_at - outcome.began_at, length)
        slope[int(first)] += allocation.gpus
        # An allocation covers only a part of its first and last bin.
        held[int(first)] -= allocation.gpus * inside / length
        slope[int(last)] -= allocation.gpus
        held[int(last)] += allocation.gpus * ahead / length
    level, use = 0.0, list[float]()
    # The running sum of the differences is the number of GPUs in the whole bin.
    for number in range(bins):
        level += slope[number]
        use.append((level + held[number]) / outcome.gpus if outcome.gpus else 0.0)
    return [(number + 0.5) * length for number in range(bins)], use


def waits_by_size(outcome: Outcome) -> list[tuple[int, list[float]]]:
    """Return the waits of all jobs by number of GPUs, ascending."""
    waits: dict[int, list[float]] = defaultdict(list)
    for job in outcome.jobs:
        waits[job.gpus].append(job.waited_seconds(outcome.ended_at))
    return [(gpus, sorted(waits[gpus])) for gpus in sorted(waits)]


def _loaded(outcome: Outcome) -> dict[str, float]:
    """Return the GPU-seconds that each queue held until the last submission."""
    until = outcome.last_submission
    held: dict[str, float] = defaultdict(float)
    for allocation in outcome.allocations:
        # Allocations that begin after the last submission have a negative length here.
        seconds = min(allocation.ends_at, until) - allocation.begins_at
        if seconds > 0:
            held[outcome.jobs[allocation.job].queue] += allocation.gpus * seconds
    return dict(held)


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0
