"""What came out of one simulation: what became of each job, who held what when, who went for whom.

Only facts; figures made of them are in `figures`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What became of one job."""

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
    """How long it held places, all its runs together."""
    preempted: int
    lost_gpu_seconds: float
    """Work that had to be done again."""

    def waited_seconds(self, until: float) -> float:
        """All the time it existed and held no places, also between two runs.

        Args:
            until: the end of the simulation, which counts for jobs that did not end.
        """
        ended = until if self.ended_at is None else self.ended_at
        return max(0.0, ended - self.submitted_at - self.held_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A job held the same places from one time to another."""

    job: int
    """Index in `Outcome.jobs`."""
    begins_at: float
    ends_at: float
    gpus: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Jobs were told to go for another one."""

    at: float
    key: str
    victims: tuple[str, ...]
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a waiting job was told about its start, and what came of it."""

    uid: str
    told_at: float
    expected_at: float
    """The p50."""
    latest_at: float
    """The p90."""
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One simulation."""

    jobs: tuple[JobRecord, ...]
    """In the order of their submission."""
    spans: tuple[Span, ...]
    evictions: tuple[Eviction, ...]
    promises: tuple[Promise, ...]
    moved: int
    """How many times a running job changed its places for defragmentation or a better pool."""
    resized: int
    cycles: int
    gpus: int
    """Of all nodes together."""
    began_at: float
    """The first submission."""
    ended_at: float
    """The last event."""

    @property
    def last_submission(self) -> float:
        """When the last job came."""
        return max((job.submitted_at for job in self.jobs), default=self.began_at)
