"""The outcome of one simulation: jobs, allocations, evictions and start forecasts.

Raw records only; `statistics` computes utilisation, waits and shares from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from drumline_scheduler.forecast.accuracy import StartForecast
from drumline_simulator.results.leases import Lease
from drumline_simulator.results.time_account import TimeAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job's history."""

    key: str
    uid: str
    queue: str
    user: str
    gpus: int
    priority: int
    submitted_at: float
    duration_seconds: float
    started_at: float | None
    """Its first start; None: it never started."""
    ended_at: float | None
    held_seconds: float
    """How long it held nodes, in all its runs together."""
    preempted: int
    lost_gpu_seconds: float
    """Work that had to be done again."""
    committed_seconds: float = 0.0
    """Work in its newest checkpoint at the end, in seconds at full size."""
    account: TimeAccount = field(default_factory=TimeAccount)
    """What became of the GPU-seconds that it held."""

    def waited_seconds(self, until: float) -> float:
        """The seconds in which it existed and held no nodes, also between two runs.

        Args:
            until: the end of the simulation, which counts for jobs that did not end.
        """
        ended = until if self.ended_at is None else self.ended_at
        return max(0.0, ended - self.submitted_at - self.held_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A period in which a job held the same nodes."""

    job: int
    """Index in `Outcome.jobs`."""
    begins_at: float
    ends_at: float
    gpus: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Victims got notice so that another job can start."""

    at: float
    key: str
    """Of the preemptor."""
    victims: tuple[str, ...]
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One simulation."""

    jobs: tuple[JobRecord, ...]
    """In the order of their submission."""
    allocations: tuple[Allocation, ...]
    evictions: tuple[Eviction, ...]
    forecasts: tuple[StartForecast, ...]
    moved: int
    """How many times a running job moved for defragmentation or to a better pool."""
    resized: int
    cycles: int
    gpus: int
    """Of all nodes together."""
    began_at: float
    """The first submission."""
    ended_at: float
    """The last event, or when the simulation was stopped."""
    leases: tuple[Lease, ...] = ()
    """When nodes were there."""

    @property
    def last_submission(self) -> float:
        """When the last job was submitted."""
        return max((job.submitted_at for job in self.jobs), default=self.began_at)
