"""The state of one simulated job: the work it has done and the rate of its progress.

Work is counted in seconds at full size; an elastic gang with half of its pods takes twice as long.
Every run but the first begins with a restart, without progress. Saved work is never lost.
"""

from __future__ import annotations

from dataclasses import replace

from drumline.scheduling import Admitted, Gang
from drumline.simulator.workload import Arrival, Execution


class SimulatedJob:
    """The mutable state of one job."""

    __slots__ = (
        "admitted",
        "allocated_at",
        "arrival",
        "ended_at",
        "gang",
        "held_seconds",
        "index",
        "lost_gpu_seconds",
        "preempted_at",
        "progress_from",
        "refreshed_at",
        "started_at",
        "version",
        "work",
    )

    def __init__(self, *, arrival: Arrival, index: int) -> None:
        self.arrival = arrival
        self.index = index
        self.gang: Gang = arrival.gang
        """The gang of the next snapshot."""
        self.admitted: Admitted | None = None
        self.work = 0.0
        """Seconds of work done, and saved, by the time `progress_from`."""
        self.progress_from = 0.0
        self.version = 0
        """Incremented whenever the expected end changes: events of older versions are stale."""
        self.allocated_at = 0.0
        self.refreshed_at = 0.0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.held_seconds = 0.0
        self.preempted_at: list[float] = []
        self.lost_gpu_seconds = 0.0

    @property
    def is_shrinking(self) -> bool:
        """Whether it has got notice for some of its positions and runs on with the others."""
        return self.admitted is not None and bool(self.admitted.giving_up)

    @property
    def total_work(self) -> float:
        """All its work in seconds; a job that reaches its maximum runtime is ended there."""
        limit = self.arrival.gang.max_runtime_seconds
        duration = self.arrival.duration_seconds
        return duration if limit is None else min(duration, limit)

    def done(self, now: float) -> float:
        """Seconds of work done by now."""
        if self.admitted is None or self.admitted.lost or now <= self.progress_from:
            return self.work
        return min(self.total_work, self.work + (now - self.progress_from) * self._rate)

    def ends_at(self) -> float:
        """When it will have done all its work at its present rate."""
        return self.progress_from + (self.total_work - self.work) / self._rate

    def start(self, *, admitted: Admitted, now: float, execution: Execution) -> None:
        """Start or continue with this assignment; a job that ran before restarts first."""
        restarts = self.started_at is not None
        if self.started_at is None:
            self.started_at = now
        self.work = self.done(now)
        self.admitted = admitted
        self.progress_from = now + (execution.restart_seconds if restarts else 0.0)
        self.allocated_at = self.refreshed_at = now
        self.version += 1

    def save(self, now: float) -> None:
        """Save all work done by now."""
        self.work = self.done(now)
        self.progress_from = now

    def roll_back(self, *, now: float, execution: Execution) -> None:
        """Lose all work since the last periodic checkpoint."""
        done = self.done(now)
        period = execution.checkpoint_seconds
        saved = self.work + (done - self.work) // period * period
        self.lost_gpu_seconds += (done - saved) * self.arrival.gang.gpus
        self.work = saved
        self.progress_from = now

    def work_at_risk(self, *, now: float, execution: Execution) -> float:
        """GPU-seconds of work since the last checkpoint."""
        done = self.done(now) - self.work
        return done % execution.checkpoint_seconds * self.arrival.gang.gpus

    def requeue(self, *, execution: Execution) -> None:
        """Hold no nodes; the gang waits again, at its old position in the queue."""
        self.admitted = None
        self.version += 1
        limit = self.arrival.gang.max_runtime_seconds
        left = None if limit is None else limit - self.work + execution.restart_seconds
        self.gang = replace(self.arrival.gang, max_runtime_seconds=left)

    @property
    def _rate(self) -> float:
        gang = self.arrival.gang
        return 1.0 if self.admitted is None else self.admitted.size / gang.nodes
