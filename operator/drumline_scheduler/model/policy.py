"""The cluster administrator's choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class WaitingRule(StrEnum):
    """The effect of a gang that cannot start yet on the gangs behind it."""

    BEST_EFFORT = "BestEffort"
    """No effect: every gang that fits starts. A big gang can starve behind a stream of small ones.
    """
    STRICT = "Strict"
    """It holds later gangs back: waiting for quota its queue, waiting for capacity the whole pool.
    """
    BACKFILL = "Backfill"
    """The first gangs get reservations on the timeline of expected ends. Later gangs start only if
    none of these is delayed."""


class Ordering(StrEnum):
    """The order among gangs of different queues."""

    PRIORITY = "Priority"
    """Higher priority, then longer waiting."""
    FAIR_SHARE = "FairShare"
    """The queue with the smallest weighted share, including past use. Inside it by priority, then
    longer waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBudget:
    """Limits for all moves that are in progress at a time."""

    gangs: int = 8
    """Largest number of running gangs that are being moved at a time."""
    gpu_seconds: float = 3600.0
    """Most GPU-seconds that these moves may lose together, including restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionLimit:
    """The number of times that a gang may be preempted within a window.

    Attributes:
        times: preemptions in any window.
        seconds: length of the window.
    """

    times: int
    seconds: float

    def __post_init__(self) -> None:
        """Reject a limit under which no gang could be preempted, and a window of no length.

        Raises:
            ValueError: with the limit.
        """
        if self.times < 1 or not self.seconds > 0:
            raise ValueError(f"want at least 1 preemption in more than 0 seconds, got {self}")

    def exempt_until(self, preempted_at: Sequence[float]) -> float | None:
        """Return the time until which a gang with these preemptions is exempt; None if it is not.

        So a gang leaves at most `times` times in any window for gangs of its own queue and for
        moves. A gang that needs its places waits for less than `seconds` longer. Other queues can
        reclaim borrowed GPUs at any time.

        Example: 3 in 3600 s, preempted at 0, 600, 1200 and 1500. The gang is exempt until 600 +
        3600. By then only two preemptions are in the last 3600 s, those at 1200 and at 1500.
        """
        if len(preempted_at) < self.times:
            return None
        # The oldest of the last `times` preemptions must leave the window first.
        return sorted(preempted_at)[-self.times] + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The cluster administrator's choices."""

    waiting: WaitingRule = WaitingRule.BEST_EFFORT
    restart_seconds: float = 60.0
    """Cost of a preemption for each GPU of a victim, in seconds, in addition to the work it loses.
    """
    priority_seconds: float = 60.0
    """Additional cost for each step of priority among the candidates, in seconds for each GPU."""
    order: Ordering = Ordering.PRIORITY
    history_weight: float = 4.0
    """Weight of a queue's decayed past use relative to its present use. 0: past use is ignored."""
    history_seconds: float = 86400.0
    """Half-life of past use, in seconds."""
    reservations: int = 16
    """Number of gangs of a pool that get reservations under the backfill rule."""
    surplus: bool = False
    """True if the pods of elastic gangs above their smallest size may be evicted."""
    repairs_preempt: bool = False
    """True if the repair of a broken gang may preempt like a waiting gang."""
    preemption_limit: PreemptionLimit | None = None
    """Number of preemptions after which its own queue spares a gang for some time. None: no limit.
    """
    preemption_delay_seconds: float = 0.0
    """Seconds that a gang must have waited before others are evicted or moved for it."""
    overdue_seconds: float = 120.0
    """A gang that should have left this many seconds ago counts as staying. So does a pod that is
    being deleted. No nodes are kept for a gang that backs off for longer."""
    moves: MoveBudget | None = None
    """Limits for moves of running gangs, for waiting gangs and for free racks. None: no moves."""
    move_back: bool = False
    """True if a running gang moves to a pool that it prefers, within `moves`."""
