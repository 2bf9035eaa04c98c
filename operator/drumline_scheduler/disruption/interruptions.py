"""Count how often the nodes of a pool were taken back, and what this cost the work there.

The GPU time that jobs held is counted day by day, and so is each announced reclaim of a node. A
reclaim costs every GPU of each gang on that node a restart. Work itself is not lost, because a
notice is enough time to save it.

Example: in 30 days jobs held 1,000 GPU-hours of a pool. Ten times a node was reclaimed under gangs
of 64 GPUs, and a restart takes 60 s. 10 x 64 x 60 s = 10.7 GPU-hours, so a GPU-hour costs 1 % more
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WINDOW_DAYS: Final = 30
MAX_PERCENT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """Use and losses of a pool's GPUs in a period."""

    gpu_seconds: int = 0
    """GPU-seconds that jobs held."""
    reclaimed_nodes: int = 0
    lost_gpu_seconds: int = 0
    """GPU-seconds that their gangs needed to start again."""

    @property
    def lost_percent(self) -> int:
        """Additional cost of the work that is kept, in whole percent so that it changes rarely."""
        if not self.gpu_seconds:
            return 0
        return min(MAX_PERCENT, 100 * self.lost_gpu_seconds // self.gpu_seconds)

    def __add__(self, other: PoolUse) -> PoolUse:
        """Return the sum of both."""
        return PoolUse(
            gpu_seconds=self.gpu_seconds + other.gpu_seconds,
            reclaimed_nodes=self.reclaimed_nodes + other.reclaimed_nodes,
            lost_gpu_seconds=self.lost_gpu_seconds + other.lost_gpu_seconds,
        )


UseByDay = Mapping[int, PoolUse]
"""Use by day (UTC), counted from the epoch."""


def with_use(history: UseByDay, use: PoolUse, *, day: int) -> UseByDay:
    """Return the history with more use on a day, without days outside the window.

    Args:
        history: use and losses by UTC day since the epoch.
        use: the use to add.
        day: days since 1970-01-01 UTC.
    """
    first = day - WINDOW_DAYS + 1
    # A day to come was written by a leader whose clock was ahead. It would never leave the window.
    kept = {other: known for other, known in history.items() if first <= other <= day}
    return kept | {day: kept.get(day, PoolUse()) + use}


def recent(history: UseByDay, *, day: int) -> PoolUse:
    """Return the total use of the last `WINDOW_DAYS`, including this day."""
    first = day - WINDOW_DAYS + 1
    return sum((use for other, use in history.items() if other >= first), start=PoolUse())
