"""A made-up trace: more work than the cluster has room for, of the kinds that share clusters.

Most jobs are small and short, most of the work is in the few that are large and long; users come
in queues, a few of them send most of the jobs; days are busier than nights. The amount of work is
set by `load`: at 1 the cluster could just do it in the time in which it is submitted.

How long a job will run is drawn from a heavy-tailed distribution; its maximum runtime is what a
careful user would ask for, between the true time and three times it, in steps of ten minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, pi, sin
from random import Random

from drumline.simulator.trace import TraceJob

_DAY = 86_400.0
_STEP = 600.0
_SHORTEST, _LONGEST = 60.0, 2 * _DAY
_SIZES = ((1, 40), (2, 12), (4, 12), (8, 18), (16, 8), (32, 5), (64, 3), (128, 2))
"""GPUs and how many of a hundred jobs have so many."""
_USERS = 6
"""Of each queue."""


def trace(
    *,
    seed: int,
    jobs: int,
    gpus: int,
    queues: Sequence[str],
    per_node: int = 8,
    load: float = 1.15,
    largest: int | None = None,
) -> list[TraceJob]:
    """A trace for a cluster.

    Args:
        seed: the same seed gives the same trace.
        jobs: how many.
        gpus: of the cluster.
        queues: whose jobs they are, the first ones more than the last ones.
        per_node: GPUs of a node; larger jobs take whole nodes.
        load: work over what the cluster can do until the last submission.
        largest: no job has more GPUs; None: a quarter of the cluster.
    """
    draw = Random(seed)  # noqa: S311 - a trace is no secret
    most = largest or max(1, gpus // 4)
    sizes = [(size, chance) for size, chance in _SIZES if size <= most]
    drawn = [_size_and_seconds(draw, sizes=sizes) for _ in range(jobs)]
    work = sum(size * seconds for size, seconds in drawn)
    times = _submissions(draw, count=jobs, span=work / (gpus * load))
    found: list[TraceJob] = []
    for number, (at, (size, seconds)) in enumerate(zip(times, drawn, strict=True)):
        queue = _falling(draw, len(queues))
        limit = -(-seconds * draw.uniform(1.0, 3.0) // _STEP) * _STEP
        found.append(
            TraceJob(
                line=number + 2,
                name=f"job-{number + 1}",
                submit_seconds=round(at, 0),
                gpus=size,
                duration_seconds=round(seconds, 0),
                user=f"{queues[queue]}-{_falling(draw, _USERS)}",
                queue=queues[queue],
                nodes=max(1, size // per_node),
                max_runtime_seconds=limit,
            )
        )
    return found


def _size_and_seconds(draw: Random, *, sizes: Sequence[tuple[int, int]]) -> tuple[int, float]:
    (size,) = draw.choices([one for one, _ in sizes], weights=[chance for _, chance in sizes])
    median = 900.0 * size**0.35
    seconds = exp(draw.gauss(log(median), 1.5))
    return size, min(max(seconds, _SHORTEST), _LONGEST)


def _submissions(draw: Random, *, count: int, span: float) -> list[float]:
    """Times of a Poisson process whose rate follows the day, made to fill the span."""
    found: list[float] = []
    while len(found) < count:
        at = draw.uniform(0.0, span)
        if draw.random() < 0.65 + 0.35 * sin(2 * pi * at / _DAY):
            found.append(at)
    return sorted(found)


def _falling(draw: Random, count: int) -> int:
    """One of so many, each half as likely again as the next."""
    return draw.choices(range(count), weights=[1.5**-i for i in range(count)])[0]
