"""One job's life in a simulation: how much work is left, and how fast it goes now.

Work is counted in seconds at full size; an elastic gang with half of its pods takes twice as long.
A run that follows another one begins with a restart, in which nothing is done. What a job has
saved is never lost again.
"""

from __future__ import annotations

from dataclasses import replace

from drumline.scheduling import Admitted, Gang
from drumline.simulator.arrivals import Arrival, Execution


class Life:
    """The mutable state of one job."""

    __slots__ = (
        "admitted",
        "arrival",
        "ended_at",
        "gang",
        "held_seconds",
        "index",
        "lost_gpu_seconds",
        "preempted",
        "refreshed_at",
        "span_began",
        "started_at",
        "version",
        "work",
        "works_from",
    )

    def __init__(self, *, arrival: Arrival, index: int) -> None:
        self.arrival = arrival
        self.index = index
        self.gang: Gang = arrival.gang
        """As the scheduler is shown it now."""
        self.admitted: Admitted | None = None
        self.work = 0.0
        """Seconds of work that were done, and saved, when `works_from` came."""
        self.works_from = 0.0
        self.version = 0
        """Counts up whenever the expected end changes: older end events mean nothing."""
        self.span_began = 0.0
        self.refreshed_at = 0.0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.held_seconds = 0.0
        self.preempted = 0
        self.lost_gpu_seconds = 0.0

    @property
    def shrinks(self) -> bool:
        """Whether it was told to give up some of its places and go on with the others."""
        return self.admitted is not None and bool(self.admitted.giving_up)

    @property
    def total_work(self) -> float:
        """All its work; a job that reaches its maximum runtime is ended there."""
        limit = self.arrival.gang.max_runtime_seconds
        duration = self.arrival.duration_seconds
        return duration if limit is None else min(duration, limit)

    def done(self, now: float) -> float:
        """Seconds of work done by now."""
        if self.admitted is None or self.admitted.lost or now <= self.works_from:
            return self.work
        return min(self.total_work, self.work + (now - self.works_from) * self._rate)

    def ends_at(self) -> float:
        """When it will have done everything, if nothing happens to it."""
        return self.works_from + (self.total_work - self.work) / self._rate

    def go(self, *, admitted: Admitted, now: float, execution: Execution) -> None:
        """Have these places from now on."""
        again = self.started_at is not None
        if self.started_at is None:
            self.started_at = now
        self.work = self.done(now)
        self.admitted = admitted
        self.works_from = now + (execution.restart_seconds if again else 0.0)
        self.span_began = self.refreshed_at = now
        self.version += 1

    def save(self, now: float) -> None:
        """All work up to now is safe."""
        self.work = self.done(now)
        self.works_from = now

    def fall_back(self, *, now: float, execution: Execution) -> None:
        """Everything since the last periodic checkpoint is to be done again."""
        done = self.done(now)
        every = execution.checkpoint_seconds
        safe = self.work + (done - self.work) // every * every
        self.lost_gpu_seconds += (done - safe) * self.arrival.gang.gpus
        self.work = safe
        self.works_from = now

    def at_risk(self, *, now: float, execution: Execution) -> float:
        """GPU-seconds since the last checkpoint."""
        done = self.done(now) - self.work
        return done % execution.checkpoint_seconds * self.arrival.gang.gpus

    def wait_again(self, *, execution: Execution) -> None:
        """Hold nothing any more and stand in the queue at its old place."""
        self.admitted = None
        self.version += 1
        limit = self.arrival.gang.max_runtime_seconds
        left = None if limit is None else limit - self.work + execution.restart_seconds
        self.gang = replace(self.arrival.gang, max_runtime_seconds=left)

    @property
    def _rate(self) -> float:
        gang = self.arrival.gang
        return 1.0 if self.admitted is None else self.admitted.size / gang.nodes
