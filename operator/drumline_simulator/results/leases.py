"""When nodes were there, and so were paid for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A time in which a node was paid for, from the ask until it was given back or taken away."""

    node: str
    pool: str
    gpus: int
    begins_at: float
    ends_at: float

    @property
    def gpu_hours(self) -> float:
        """GPU-hours paid."""
        return self.gpus * (self.ends_at - self.begins_at) / 3600.0
