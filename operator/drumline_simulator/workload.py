"""The workload of a simulation: arriving jobs, node outages, and the times of execution."""

from __future__ import annotations

from dataclasses import dataclass, fields

from drumline_scheduler import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job; `gang.queued_at` is when it is submitted."""

    gang: Gang
    duration_seconds: float
    """How long it runs at full size without interruption. The scheduler only knows
    `gang.max_runtime_seconds`."""
    checkpoint_seconds: float | None = None
    """Between its periodic checkpoints; None: as `Execution` says for all."""

    def __post_init__(self) -> None:
        """Reject a negative or infinite duration, and checkpoints without a pause.

        Raises:
            ValueError: with the job.
        """
        if not 0 <= self.duration_seconds < float("inf"):
            raise ValueError(f"{self.gang.key}: duration must be 0 or more seconds and finite")
        if self.checkpoint_seconds is not None and not self.checkpoint_seconds > 0:
            raise ValueError(f"{self.gang.key}: checkpoint_seconds must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node that is out of service for a while."""

    node: str
    at: float
    """When it is gone."""
    seconds: float
    notice_seconds: float = 0.0
    """How long before it is announced, as a spot reclaim is; 0: not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFault:
    """A process of one GPU ends or stands still; its node stays in service."""

    node: str
    at: float
    part: float
    """Which of the node's GPUs: at or above 0, below 1."""
    hangs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How long saving, restarting and reacting to an event take, in seconds."""

    save_seconds: float = 30.0
    """From the notice until a preempted job is gone, its work saved; 0: it is killed and loses its
    work since the last periodic checkpoint."""
    leave_seconds: float = 0.0
    """From the notice until a job that is killed is gone: its pods end, and that is seen."""
    checkpoint_seconds: float = 1800.0
    """Between periodic checkpoints: the most that a failed node costs."""
    restart_seconds: float = 60.0
    """From a new assignment until a job that ran before makes progress again."""
    settle_seconds: float = 0.0
    """From an event to the cycle that sees it."""
    period_seconds: float = 0.0
    """The least time between two cycles."""
    start_seconds: float = 0.0
    """From its first assignment until a job makes progress."""
    checkpoint_stall_seconds: float = 0.0
    """How long a periodic checkpoint stops training."""
    snapshot_seconds: float | None = None
    """Between snapshots in memory, with a copy on another node: the most that a lost process or
    node costs. None: there are none, and both cost the work since the last checkpoint."""
    snapshot_share: float = 0.0
    """The part of the time that snapshots stop training."""
    process_seconds: float = 60.0
    """From the end of a process until its job makes progress again on the same nodes."""
    hang_seconds: float = 600.0
    """From the moment in which a process stands still until that is noticed."""
    repair_seconds: float | None = None
    """From the replacement of a lost node until progress; None: as `restart_seconds`."""
    broken_seconds: float | None = None
    """How long a job that has lost a node waits for another before it gives up the rest and queues
    again; None: for ever."""

    def __post_init__(self) -> None:
        """Reject negative times.

        Raises:
            ValueError: with the field.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value < 0:
                raise ValueError(f"{each.name} must not be negative")
        for name in ("checkpoint_seconds", "snapshot_seconds"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be above 0")
        if self.snapshot_share >= 1:
            raise ValueError("snapshot_share must be below 1")

    @property
    def work_share(self) -> float:
        """The part of a running job's time that is not spent on checkpoints and snapshots."""
        stall = self.checkpoint_stall_seconds / self.checkpoint_seconds
        return (1.0 - self.snapshot_share) / (1.0 + stall)
