"""Generate the week's jobs: arrivals by hour and day, sizes and lengths by team.

As in published clusters, most jobs use one node or less, and most of the GPU time goes to larger
jobs (arXiv:2410.21680). People submit during the day from Monday to Friday, and at a quarter of the
rate otherwise. Jobs arrive until their work is `load` times the capacity of all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from random import Random
from typing import Final

from drumline_scheduler import Gang, Resources
from drumline_simulator.week.setting import (
    FINETUNING,
    INTERACTIVE,
    NODE_GPUS,
    PRETRAINING,
    RESEARCH,
    Setting,
)
from drumline_simulator.workload import Arrival

# Seconds. Weekdays from 8:00 to 20:00 have the full rate.
_HOUR: Final = 3600.0
_DAY: Final = 86_400.0
_SHORTEST: Final = 120.0
_USERS: Final = 8
_HIGH_SHARE: Final = 0.15
_WORK_DAYS: Final = 5
_BY_DAY: Final = range(8, 20)
_QUIET: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Team:
    queue: str
    work: float
    """Its share of all work."""
    sizes: tuple[tuple[int, int], ...]
    """GPUs, with the percentage of its jobs."""
    median_seconds: float
    spread: float
    """Standard deviation of the logarithm of the seconds."""
    longest_seconds: float
    elastic: float = 0.0
    """Share of its multi-node jobs that can also run with half of their nodes."""


# Work, not jobs: few large jobs hold most of the GPU time.
_TEAMS: Final = (
    _Team(
        # The sizes are percentages of jobs, so the share of GPU time of large jobs is higher.
        queue=PRETRAINING,
        work=0.40,
        sizes=((32, 40), (64, 40), (128, 20)),
        median_seconds=10 * _HOUR,
        spread=0.6,
        longest_seconds=48 * _HOUR,
    ),
    _Team(
        queue=RESEARCH,
        work=0.40,
        sizes=((8, 40), (16, 30), (32, 20), (64, 10)),
        median_seconds=3 * _HOUR,
        spread=0.9,
        longest_seconds=24 * _HOUR,
        elastic=0.4,
    ),
    _Team(
        queue=FINETUNING,
        work=0.15,
        sizes=((2, 20), (4, 30), (8, 40), (16, 10)),
        median_seconds=1.5 * _HOUR,
        spread=0.8,
        longest_seconds=12 * _HOUR,
        elastic=0.4,
    ),
    _Team(
        queue=INTERACTIVE,
        work=0.05,
        sizes=((1, 60), (2, 20), (4, 10), (8, 10)),
        median_seconds=0.4 * _HOUR,
        spread=1.0,
        longest_seconds=4 * _HOUR,
    ),
)


def arrivals(setting: Setting, *, load: float = 1.1) -> list[Arrival]:
    """Return the jobs of a setting, in order of submission.

    Args:
        setting: setting with seed, seconds and number of nodes.
        load: work divided by the capacity of all nodes without failures.
    """
    # The load counts all nodes without failures, so every side gets the same jobs.
    gpu_seconds = setting.nodes * NODE_GPUS * setting.seconds * load
    jobs = [
        job
        for team in _TEAMS
        for job in _of_team(team, gpu_seconds=gpu_seconds * team.work, setting=setting)
    ]
    return sorted(jobs, key=lambda job: (job.gang.queued_at, job.gang.uid))


def _of_team(team: _Team, *, gpu_seconds: float, setting: Setting) -> Iterator[Arrival]:
    # A seed per team: another team's change leaves these jobs as they are.
    draw = Random(f"{setting.seed}/{team.queue}")  # noqa: S311 - a trace is no secret
    sizes, weights = zip(*team.sizes, strict=True)
    # A gang must fit into the smaller part of the cluster, reserved or spot.
    largest = min(setting.reserved_nodes, setting.nodes - setting.reserved_nodes) * NODE_GPUS
    number = 0
    while gpu_seconds > 0:
        (gpus,) = draw.choices(sizes, weights=weights)
        gpus = min(gpus, largest)
        # Log-normal lengths, cut at both ends: the tail would hold whole weeks.
        drawn = exp(draw.gauss(log(team.median_seconds), team.spread))
        seconds = round(min(max(drawn, _SHORTEST), team.longest_seconds))
        # Jobs below a node use one pod with a part of its GPUs.
        nodes = max(1, gpus // NODE_GPUS)
        elastic = nodes > 1 and draw.random() < team.elastic
        uid = f"{team.queue}-{number:05}"
        gang = Gang(
            key=f"{team.queue}/{uid}",
            uid=uid,
            queue=team.queue,
            nodes=nodes,
            per_pod=Resources(gpus=gpus // nodes, pods=1),
            queued_at=_submission(draw, seconds=setting.seconds),
            # 15 % are urgent, which gives preemption something to do within a queue.
            priority=10 if draw.random() < _HIGH_SHARE else 0,
            user=f"{team.queue}-{draw.randrange(_USERS)}",
            sizes=tuple(range(nodes // 2, nodes + 1)) if elastic else (),
        )
        yield Arrival(gang=gang, duration_seconds=seconds)
        # The last job may exceed the budget by its own size, which is small against a week.
        gpu_seconds -= gpus * seconds
        number += 1


def _submission(draw: Random, *, seconds: float) -> float:
    """Return a time by rejection sampling. A week begins on Monday at midnight."""
    while True:
        at = draw.uniform(0.0, seconds)
        day, hour = int(at // _DAY) % 7, int(at % _DAY // _HOUR)
        rate = 1.0 if day < _WORK_DAYS and hour in _BY_DAY else _QUIET
        if draw.random() < rate:
            # Whole seconds, so that several jobs may share one cycle.
            return float(round(at))
