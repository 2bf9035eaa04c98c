"""Record the outcome of one simulation: jobs, allocations, evictions and start forecasts.

It contains raw records only. `statistics` computes utilisation, waits and shares from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drumline_scheduler.forecast.accuracy import StartForecast
from drumline_simulator.results.leases import Lease
from drumline_simulator.results.time_account import Cause, TimeAccount


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
    """First start. None: it never started."""
    ended_at: float | None
    held_seconds: float
    """Seconds for which it held nodes, over all its runs."""
    preempted: int
    lost_gpu_seconds: float
    """Work that was repeated."""
    committed_seconds: float = 0.0
    """Work in its newest checkpoint at the end, in seconds at full size."""
    account: TimeAccount = field(default_factory=TimeAccount)
    """Use of the GPU-seconds that it held."""
    not_useful: Mapping[Cause, float] = field(default_factory=dict[Cause, float])
    """GPU-seconds that it held and that were not useful, by cause."""

    def waited_seconds(self, until: float) -> float:
        """Return the seconds in which it existed without nodes, also between two runs.

        Args:
            until: end of the simulation, which counts for jobs that did not end.
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
    """Victims that got notice so that another job can start."""

    at: float
    key: str
    """Key of the preemptor."""
    victims: tuple[str, ...]
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one simulation."""

    jobs: tuple[JobRecord, ...]
    """Jobs in order of submission."""
    allocations: tuple[Allocation, ...]
    evictions: tuple[Eviction, ...]
    forecasts: tuple[StartForecast, ...]
    moved: int
    """Number of moves of running jobs for defragmentation or to a better pool."""
    resized: int
    cycles: int
    gpus: int
    """Number of GPUs of all nodes."""
    began_at: float
    """Time of the first submission."""
    ended_at: float
    """Time of the last event, or of the stop."""
    leases: tuple[Lease, ...] = ()
    """Periods in which nodes existed."""

    @property
    def last_submission(self) -> float:
        """Return the time of the last submission."""
        return max((job.submitted_at for job in self.jobs), default=self.began_at)
