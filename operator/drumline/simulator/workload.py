"""The workload of a simulation: arriving jobs, node outages, and the times of execution."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.scheduling import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job; `gang.queued_at` is when it is submitted."""

    gang: Gang
    duration_seconds: float
    """How long it runs at full size without interruption. The scheduler only knows
    `gang.max_runtime_seconds`."""

    def __post_init__(self) -> None:
        """Reject a negative or infinite duration.

        Raises:
            ValueError: with the job and its duration.
        """
        if not 0 <= self.duration_seconds < float("inf"):
            raise ValueError(f"{self.gang.key}: duration must be 0 or more seconds and finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node that is out of service for a while."""

    node: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How long saving, restarting and reacting to an event take, in seconds."""

    save_seconds: float = 30.0
    """From the notice until a preempted job is gone, its work saved; 0: it is killed and loses its
    work since the last periodic checkpoint."""
    checkpoint_seconds: float = 1800.0
    """Between periodic checkpoints: the most that a failed node costs."""
    restart_seconds: float = 60.0
    """From a new assignment until a job that ran before makes progress again."""
    settle_seconds: float = 0.0
    """From an event to the cycle that sees it."""
    period_seconds: float = 0.0
    """The least time between two cycles."""

    def __post_init__(self) -> None:
        """Reject negative times.

        Raises:
            ValueError: with the field.
        """
        for name in ("save", "restart", "settle", "period"):
            if getattr(self, f"{name}_seconds") < 0:
                raise ValueError(f"{name}_seconds must not be negative")
        if self.checkpoint_seconds <= 0:
            raise ValueError("checkpoint_seconds must be above 0")
