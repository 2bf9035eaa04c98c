"""The cluster administrator's choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class WaitingRule(StrEnum):
    """What a gang that cannot start yet means for the gangs behind it."""

    BEST_EFFORT = "BestEffort"
    """Nothing: whatever fits starts. A big gang can starve behind a stream of small ones."""
    STRICT = "Strict"
    """It holds them back: waiting for quota its queue, waiting for capacity the whole pool."""
    BACKFILL = "Backfill"
    """The first ones get reservations on the timeline of expected ends; later gangs start only
    if none of them is delayed."""


class Ordering(StrEnum):
    """The order among gangs of different queues."""

    PRIORITY = "Priority"
    """Higher priority, then longer waiting."""
    FAIR_SHARE = "FairShare"
    """The queue with the smallest weighted share, use of the past counted; inside it by priority,
    then longer waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBudget:
    """Bounds for all moves that are in progress at a time."""

    gangs: int = 8
    """The most running gangs that are moved at a time."""
    gpu_seconds: float = 3600.0
    """The most GPU-seconds that they may lose together, restarts counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionLimit:
    """How often a gang may be preempted in a time."""

    times: int
    seconds: float

    def __post_init__(self) -> None:
        """Reject a limit under which nobody could ever be preempted, or that is none.

        Raises:
            ValueError: with the limit.
        """
        if self.times < 1 or not self.seconds > 0:
            raise ValueError(f"want at least 1 preemption in more than 0 seconds, got {self}")

    def spared_until(self, preempted_at: Sequence[float]) -> float | None:
        """Until when a gang is spared that was preempted at these times; None: it is not.

        So it leaves at most `times` times in any time as long as `seconds` for gangs of its own
        queue and for moves, and who needs its places waits for less than `seconds` longer. What it
        borrows is reclaimed all the same.

        Example: 3 in 3600 s, preempted at 0, 600, 1200 and 1500. It is spared until 600 + 3600: by
        then two of the last 3600 s are left, those at 1200 and at 1500.
        """
        if len(preempted_at) < self.times:
            return None
        return sorted(preempted_at)[-self.times] + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The cluster administrator's choices."""

    waiting: WaitingRule = WaitingRule.BEST_EFFORT
    restart_seconds: float = 60.0
    """What a preemption costs each GPU of a victim beside the work it loses."""
    priority_seconds: float = 60.0
    """What it costs further for each step of priority among the candidates."""
    order: Ordering = Ordering.PRIORITY
    history_weight: float = 4.0
    """What a queue's decayed use counts beside what it holds now; 0: nothing."""
    history_seconds: float = 86400.0
    """After that long half of a use is forgotten."""
    reservations: int = 16
    """How many gangs of a pool get reservations under the backfill rule."""
    surplus: bool = False
    """Whether the pods of elastic gangs above their smallest size may be evicted."""
    repairs_preempt: bool = False
    """Whether the repair of a broken gang may preempt as a waiting gang may."""
    preemption_limit: PreemptionLimit | None = None
    """Who was preempted so often is spared for a while by its own queue; None: nobody is."""
    overdue_seconds: float = 120.0
    """A gang that should have left this long ago counts as staying. So does a pod that is being
    deleted, and no nodes are kept for a gang that backs off for longer."""
    moves: MoveBudget | None = None
    """Bounds for moves of running gangs, for waiting gangs and for free racks; None: no moves."""
    move_back: bool = False
    """Whether a running gang moves to a pool that it would rather have, within `moves`."""
