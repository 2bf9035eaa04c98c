"""Generate a synthetic trace that exceeds the cluster's capacity, with three classes of jobs.

Each class has its own queues. Large jobs take an eighth to a half of the cluster for about half an
hour. Long jobs of one or two nodes run for hours and are most of the work. Small, short,
interactive jobs are the most numerous. Within a queue a few users submit most of the jobs, and the
rate follows the time of day. `load` sets the amount of work: at 1, the cluster could just finish it
while it is submitted.

Durations have a heavy-tailed (log-normal) distribution. The maximum runtime is between the true
duration and three times that, in steps of ten minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, pi, sin
from random import Random
from typing import Final

from drumline_simulator.input.trace import TraceJob

_DAY: Final = 86_400.0
_STEP: Final = 600.0
_SHORTEST: Final = 60.0
_USERS: Final = 6
"""Users per queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobClass:
    jobs: int
    """Percentage of all jobs."""
    # Fractions scale with the cluster. Sizes of 1 and above are numbers of GPUs.
    sizes: tuple[tuple[float, int], ...]
    """GPUs, or below 1 a fraction of the cluster, with the percentage of jobs of this size."""
    median_seconds: float
    spread: float
    """Standard deviation of the logarithm of the seconds."""
    longest_seconds: float


# The percentages are of jobs. Long jobs are few and hold most of the work.
_LARGE: Final = _JobClass(
    jobs=12,
    sizes=((1 / 8, 60), (1 / 4, 30), (1 / 2, 10)),
    median_seconds=1800,
    spread=0.6,
    longest_seconds=4 * 3600,
)
_LONG: Final = _JobClass(
    jobs=7,
    sizes=((8, 40), (16, 60)),
    median_seconds=5 * 3600,
    spread=0.8,
    longest_seconds=_DAY,
)
_SMALL: Final = _JobClass(
    jobs=81,
    sizes=((1, 40), (2, 20), (4, 25), (8, 15)),
    median_seconds=1200,
    spread=1.0,
    longest_seconds=4 * 3600,
)
_KINDS: Final = (_LARGE, _LONG, _SMALL)


def trace(
    *,
    seed: int,
    jobs: int,
    gpus: int,
    queues: Sequence[str],
    per_node: int = 8,
    load: float = 1.15,
) -> list[TraceJob]:
    """Generate a trace for a cluster.

    Args:
        seed: the same seed gives the same trace.
        jobs: number of jobs.
        gpus: number of GPUs in the cluster.
        queues: queues. The first third gets the large jobs, the last third the small jobs.
        per_node: GPUs per node. Larger jobs use whole nodes.
        load: work divided by the cluster's capacity until the last submission.
    """
    # All draws come from one generator in a fixed order, so a seed gives one trace.
    draw = Random(seed)  # noqa: S311 - a trace is no secret
    numbers = draw.choices(range(len(_KINDS)), weights=[kind.jobs for kind in _KINDS], k=jobs)
    drawn = [_size_and_seconds(draw, kind=_KINDS[number], gpus=gpus) for number in numbers]
    work = sum(size * seconds for size, seconds in drawn)
    # The span follows from the work, so `load` holds for any number of jobs.
    times = submissions(draw, count=jobs, until=work / (gpus * load))
    trace_jobs: list[TraceJob] = []
    for number, (size, seconds) in enumerate(drawn):
        candidates = _queues_of_kind(numbers[number], queues)
        queue = candidates[_skewed_index(draw, len(candidates))]
        trace_jobs.append(
            TraceJob(
                line=number + 2,
                name=f"job-{number + 1}",
                submit_seconds=round(times[number], 0),
                gpus=size,
                duration_seconds=round(seconds, 0),
                user=f"{queue}-{_skewed_index(draw, _USERS)}",
                queue=queue,
                nodes=max(1, size // per_node),
                # Users overestimate. A backfilling scheduler must work with such limits.
                max_runtime_seconds=-(-seconds * draw.uniform(1.0, 3.0) // _STEP) * _STEP,
            )
        )
    return trace_jobs


def _size_and_seconds(draw: Random, *, kind: _JobClass, gpus: int) -> tuple[int, float]:
    sizes, weights = zip(*kind.sizes, strict=True)
    (size,) = draw.choices(sizes, weights=weights)
    seconds = exp(draw.gauss(log(kind.median_seconds), kind.spread))
    whole = round(size * gpus) if size < 1 else round(size)
    # A fraction of a small cluster may round to 0 GPUs.
    return max(1, min(whole, gpus)), min(max(seconds, _SHORTEST), kind.longest_seconds)


def _queues_of_kind(kind: int, queues: Sequence[str]) -> Sequence[str]:
    """Return the queues of a kind. With fewer queues than kinds, return the nearest queue."""
    third = [name for i, name in enumerate(queues) if i * len(_KINDS) // len(queues) == kind]
    return third or [queues[min(kind, len(queues) - 1)]]


def submissions(draw: Random, *, count: int, until: float, since: float = 0.0) -> list[float]:
    """Draw times of a Poisson process whose rate follows the time of day.

    Args:
        draw: source of the random numbers.
        count: number of times.
        until: end of the process, in seconds.
        since: its beginning, in seconds.
    """
    times: list[float] = []
    while len(times) < count:
        at = draw.uniform(since, until)
        # Rejection sampling: 0.65 + 0.35 is at most 1, so the rate is the acceptance itself.
        if draw.random() < 0.65 + 0.35 * sin(2 * pi * at / _DAY):
            times.append(at)
    return sorted(times)


def _skewed_index(draw: Random, count: int) -> int:
    """Draw an index below `count`, each 1.5 times as likely as the next."""
    return draw.choices(range(count), weights=[1.5**-i for i in range(count)])[0]
