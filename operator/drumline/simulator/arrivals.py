"""What comes to the cluster: gangs with the time they come at and the work they bring."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.scheduling import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One job as the simulation gets it: `gang.queued_at` is when it is submitted."""

    gang: Gang
    duration_seconds: float
    """How long it runs at the size it wants, undisturbed. What the scheduler is told is only
    `gang.max_runtime_seconds`."""

    def __post_init__(self) -> None:
        """Refuse a job that never ends or ends before it began.

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
    """What time passes beside the decisions themselves."""

    save_seconds: float = 30.0
    """From the notice until a preempted job is gone, its work saved; 0: it is killed, and what it
    did since its last periodic checkpoint is lost."""
    checkpoint_seconds: float = 1800.0
    """Between periodic checkpoints: what a failed node costs at most."""
    restart_seconds: float = 60.0
    """From new places until a job that ran before makes progress again."""
    settle_seconds: float = 0.0
    """From an event to the cycle that sees it."""
    period_seconds: float = 0.0
    """The least time between two cycles."""

    def __post_init__(self) -> None:
        """Refuse negative times.

        Raises:
            ValueError: with the field.
        """
        for name in ("save", "restart", "settle", "period"):
            if getattr(self, f"{name}_seconds") < 0:
                raise ValueError(f"{name}_seconds must not be negative")
        if self.checkpoint_seconds <= 0:
            raise ValueError("checkpoint_seconds must be above 0")
