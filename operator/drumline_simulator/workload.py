"""Define the workload of a simulation: arriving jobs, node outages, and execution times."""

from __future__ import annotations

from dataclasses import dataclass, fields

from drumline_scheduler import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job. `gang.queued_at` is its submission time."""

    gang: Gang
    duration_seconds: float
    """Run time at full size without interruption. The scheduler knows only
    `gang.max_runtime_seconds`."""
    checkpoint_seconds: float | None = None
    """Seconds between its periodic checkpoints. None: the value of `Execution`."""

    def __post_init__(self) -> None:
        """Reject a negative or infinite duration, and checkpoints without an interval.

        Raises:
            ValueError: a value is invalid. The message names the job.
        """
        if not 0 <= self.duration_seconds < float("inf"):
            raise ValueError(f"{self.gang.key}: duration must be 0 or more seconds and finite")
        if self.checkpoint_seconds is not None and not self.checkpoint_seconds > 0:
            raise ValueError(f"{self.gang.key}: checkpoint_seconds must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A period in which a node is out of service."""

    node: str
    at: float
    """Time at which the node goes."""
    seconds: float
    notice_seconds: float = 0.0
    """Seconds from the announcement to the end, as with a spot reclaim. 0: no announcement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFault:
    """A fault in which a process of one GPU ends or hangs. Its node stays in service."""

    node: str
    at: float
    part: float
    """Position of the GPU in the node, at least 0 and below 1."""
    hangs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Seconds to save, restart and react to events."""

    save_seconds: float = 30.0
    """Seconds from the notice until a preempted job has saved and left. 0: it is killed and loses
    its work since the last periodic checkpoint."""
    leave_seconds: float = 0.0
    """Seconds from the notice until a killed job has left: its pods end, and the end is
    detected."""
    checkpoint_seconds: float = 1800.0
    """Seconds between periodic checkpoints: the maximum loss from a failed node."""
    restart_seconds: float = 60.0
    """Seconds from a new assignment until a job that ran before makes progress again."""
    settle_seconds: float = 0.0
    """Seconds from an event to its cycle."""
    period_seconds: float = 0.0
    """Minimum seconds between two cycles."""
    start_seconds: float = 0.0
    """Seconds from its first assignment until a job makes progress."""
    checkpoint_stall_seconds: float = 0.0
    """Seconds for which a periodic checkpoint pauses training."""
    snapshot_seconds: float | None = None
    """Seconds between snapshots in memory, with a copy on another node: the maximum loss from a
    lost process or node. None: no snapshots, so both lose the work since the last checkpoint."""
    snapshot_share: float = 0.0
    """Share of the time for which snapshots pause training."""
    process_seconds: float = 60.0
    """Seconds from the end of a process until its job makes progress again on the same nodes."""
    hang_seconds: float = 600.0
    """Seconds until a hang is detected."""
    repair_seconds: float | None = None
    """Seconds from the replacement of a lost node until progress. None: `restart_seconds`."""
    broken_seconds: float | None = None
    """Seconds for which a job with a lost node waits for another node before it releases its other
    nodes and is queued again. None: forever."""

    def __post_init__(self) -> None:
        """Reject negative times.

        Raises:
            ValueError: a time is negative. The message names the field.
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
        """Return the share of a running job's time without checkpoints and snapshots."""
        stall = self.checkpoint_stall_seconds / self.checkpoint_seconds
        return (1.0 - self.snapshot_share) / (1.0 + stall)
