"""How often things fail, as rates."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """Random failures of whatever runs on a GPU; the times between them are exponential."""

    gpu_hours: float = float("inf")
    """Mean GPU-hours between two failures of any kind; infinite: nothing fails."""
    process_share: float = 0.0
    """The part of them that ends a process and leaves the node in service."""
    hang_share: float = 0.0
    """The part of them in which a process stands still. The rest takes the node."""
    repair_seconds: float = 3600.0
    """Until a lost node, or one in its place, is in service."""

    def __post_init__(self) -> None:
        """Reject negative rates and shares of more than all.

        Raises:
            ValueError: with the field.
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
    """How often the provider takes a spot node back."""

    node_hours: float
    """Mean hours of a node until it is taken back."""
    notice_seconds: float = 120.0
    """How long before it says so."""
    away_seconds: float = 900.0
    """Mean time until another node can be had in its place."""

    def __post_init__(self) -> None:
        """Reject what no node can have.

        Raises:
            ValueError: with the field.
        """
        if self.node_hours <= 0:
            raise ValueError("node_hours must be above 0")
        if self.notice_seconds < 0 or self.away_seconds < 0:
            raise ValueError("notice_seconds and away_seconds must not be negative")
