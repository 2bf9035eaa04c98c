"""Record the periods in which nodes existed and were paid for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A period in which a node was paid for, from the request until its end."""

    node: str
    pool: str
    gpus: int
    begins_at: float
    ends_at: float

    @property
    def gpu_hours(self) -> float:
        """Return the paid GPU-hours."""
        return self.gpus * (self.ends_at - self.begins_at) / 3600.0
