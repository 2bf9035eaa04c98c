"""How often the nodes of a pool were taken back, and what that cost the work there.

What jobs held is counted day by day, and so is each announced reclaim of a node: it costs every GPU
of each gang on that node a restart. Work itself is not lost, as a notice is time enough to save it.

Example: in 30 days jobs held 1,000 GPU-hours of a pool. Ten times a node went under gangs of 64
GPUs, a restart takes 60 s: 10 x 64 x 60 s = 10.7 GPU-hours, so a GPU-hour costs 1 % more there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WINDOW_DAYS: Final = 30
MAX_PERCENT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """What became of a pool's GPUs in a time."""

    gpu_seconds: int = 0
    """That jobs held."""
    reclaimed_nodes: int = 0
    lost_gpu_seconds: int = 0
    """That their gangs needed to start again."""

    @property
    def lost_percent(self) -> int:
        """How much more is paid for the work that is kept: whole percent, so it changes rarely."""
        if not self.gpu_seconds:
            return 0
        return min(MAX_PERCENT, 100 * self.lost_gpu_seconds // self.gpu_seconds)

    def __add__(self, other: PoolUse) -> PoolUse:
        """Both together."""
        return PoolUse(
            gpu_seconds=self.gpu_seconds + other.gpu_seconds,
            reclaimed_nodes=self.reclaimed_nodes + other.reclaimed_nodes,
            lost_gpu_seconds=self.lost_gpu_seconds + other.lost_gpu_seconds,
        )


UseByDay = Mapping[int, PoolUse]
"""By day (UTC), counted from the epoch."""


def with_use(history: UseByDay, use: PoolUse, *, day: int) -> UseByDay:
    """The history with more on a day; days that do not count any more are left out."""
    first = day - WINDOW_DAYS + 1
    kept = {other: known for other, known in history.items() if other >= first}
    return kept | {day: kept.get(day, PoolUse()) + use}


def recent(history: UseByDay, *, day: int) -> PoolUse:
    """What of it counts on a day: the last `WINDOW_DAYS`, it included."""
    first = day - WINDOW_DAYS + 1
    return sum((use for other, use in history.items() if other >= first), start=PoolUse())
