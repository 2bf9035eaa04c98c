"""Define failure and reclaim rates."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """Random failures of processes on GPUs. The times between them are exponential."""

    gpu_hours: float = float("inf")
    """Mean GPU-hours between two failures of any kind. Infinite: no failures."""
    process_share: float = 0.0
    """Share of failures that end a process and leave the node in service."""
    hang_share: float = 0.0
    """Share of failures in which a process hangs. The remaining failures take the node."""
    repair_seconds: float = 3600.0
    """Seconds until a lost node or its replacement is in service."""

    def __post_init__(self) -> None:
        """Reject negative rates and shares above 1.

        Raises:
            ValueError: a value is invalid. The message names the field.
        """
        for each in fields(self):
            if getattr(self, each.name) < 0:
                raise ValueError(f"{each.name} must not be negative")
        if not self.gpu_hours:
            raise ValueError("gpu_hours must be above 0")
        if self.process_share + self.hang_share > 1:
            raise ValueError("process_share and hang_share must be at most 1 together")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRates:
    """Rate at which the provider reclaims a spot node."""

    node_hours: float
    """Mean hours until a node is reclaimed."""
    notice_seconds: float = 120.0
    """Seconds between the notice and the reclaim."""
    away_seconds: float = 900.0
    """Mean seconds until a replacement is available."""

    def __post_init__(self) -> None:
        """Reject invalid values.

        Raises:
            ValueError: a value is invalid. The message names the field.
        """
        if self.node_hours <= 0:
            raise ValueError("node_hours must be above 0")
        if self.notice_seconds < 0 or self.away_seconds < 0:
            raise ValueError("notice_seconds and away_seconds must not be negative")
