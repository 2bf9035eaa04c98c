"""A made-up trace: more work than the cluster has room for, of the kinds that share clusters.

Three kinds of work come, each from queues of its own: large jobs that take an eighth to a half of
the cluster for half an hour or so; long ones of a node or two that run for hours and are most of
the work; and, most of the jobs, small short ones whose owners sit and wait. Within a queue a few
users send most of the jobs, and days are busier than nights. The amount of work is set by `load`:
at 1 the cluster could just do it in the time in which it is submitted.

How long a job runs is drawn from a heavy-tailed distribution; its maximum runtime is what a careful
user would ask for, between the true time and three times it, in steps of ten minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, pi, sin
from random import Random
from typing import Final

from drumline.simulator.input.trace import TraceJob

_DAY: Final = 86_400.0
_STEP: Final = 600.0
_SHORTEST: Final = 60.0
_USERS: Final = 6
"""Of each queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    jobs: int
    """Of a hundred."""
    sizes: tuple[tuple[float, int], ...]
    """GPUs, or below 1 a part of the cluster, and how many of a hundred have so many."""
    median_seconds: float
    spread: float
    """Of the logarithm of the seconds."""
    longest_seconds: float


_LARGE: Final = _Kind(
    jobs=12,
    sizes=((1 / 8, 60), (1 / 4, 30), (1 / 2, 10)),
    median_seconds=1800,
    spread=0.6,
    longest_seconds=4 * 3600,
)
_LONG: Final = _Kind(
    jobs=7,
    sizes=((8, 40), (16, 60)),
    median_seconds=5 * 3600,
    spread=0.8,
    longest_seconds=_DAY,
)
_SMALL: Final = _Kind(
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
    """A trace for a cluster.

    Args:
        seed: the same seed gives the same trace.
        jobs: how many.
        gpus: of the cluster.
        queues: whose jobs they are: the large ones of the first third of them, the small ones of
            the last one.
        per_node: GPUs of a node; larger jobs take whole nodes.
        load: work over what the cluster can do until the last submission.
    """
    draw = Random(seed)  # noqa: S311 - a trace is no secret
    numbers = draw.choices(range(len(_KINDS)), weights=[kind.jobs for kind in _KINDS], k=jobs)
    drawn = [_size_and_seconds(draw, kind=_KINDS[number], gpus=gpus) for number in numbers]
    work = sum(size * seconds for size, seconds in drawn)
    times = _submissions(draw, count=jobs, span=work / (gpus * load))
    found: list[TraceJob] = []
    for number, (size, seconds) in enumerate(drawn):
        its = _queues_of(numbers[number], queues)
        queue = its[_falling(draw, len(its))]
        found.append(
            TraceJob(
                line=number + 2,
                name=f"job-{number + 1}",
                submit_seconds=round(times[number], 0),
                gpus=size,
                duration_seconds=round(seconds, 0),
                user=f"{queue}-{_falling(draw, _USERS)}",
                queue=queue,
                nodes=max(1, size // per_node),
                max_runtime_seconds=-(-seconds * draw.uniform(1.0, 3.0) // _STEP) * _STEP,
            )
        )
    return found


def _size_and_seconds(draw: Random, *, kind: _Kind, gpus: int) -> tuple[int, float]:
    (size,) = draw.choices([one for one, _ in kind.sizes], weights=[part for _, part in kind.sizes])
    seconds = exp(draw.gauss(log(kind.median_seconds), kind.spread))
    whole = round(size * gpus) if size < 1 else round(size)
    return max(1, min(whole, gpus)), min(max(seconds, _SHORTEST), kind.longest_seconds)


def _queues_of(kind: int, queues: Sequence[str]) -> Sequence[str]:
    """Those of its third; with fewer queues than kinds the nearest one."""
    mine = [name for i, name in enumerate(queues) if i * len(_KINDS) // len(queues) == kind]
    return mine or [queues[min(kind, len(queues) - 1)]]


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
