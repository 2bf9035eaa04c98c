"""The choices of a cluster's owner."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WaitingRule(StrEnum):
    """What a gang that cannot start yet does to those behind it."""

    BEST_EFFORT = "BestEffort"
    """Nothing: whatever fits starts. A big gang can starve behind a stream of small ones."""
    STRICT = "Strict"
    """It holds them back: waiting for quota its queue, waiting for capacity the whole pool."""
    BACKFILL = "Backfill"
    """The first ones get reservations on the timeline of expected ends; whoever comes later starts
    only if none of them slips."""


class Ordering(StrEnum):
    """Who comes first among those of different queues."""

    PRIORITY = "Priority"
    """Higher priority, then longer waiting."""
    FAIR_SHARE = "FairShare"
    """The queue with the smallest weighted share, use of the past counted; inside it by priority,
    then longer waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBudget:
    """How much moves may cost: of all who are on their way at a time."""

    gangs: int = 8
    """The most running gangs that are moved at a time."""
    gpu_seconds: float = 3600.0
    """The most GPU-seconds that they may lose together, restarts counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The choices of a cluster's owner."""

    waiting: WaitingRule = WaitingRule.BEST_EFFORT
    restart_seconds: float = 60.0
    """What a preemption costs each GPU of a victim beside the work it loses."""
    priority_seconds: float = 60.0
    """What it costs further for each step of priority among those that could be sent away."""
    order: Ordering = Ordering.PRIORITY
    history_weight: float = 4.0
    """What a queue's decayed use counts beside what it holds now; 0: nothing."""
    history_seconds: float = 86400.0
    """After that long half of a use is forgotten."""
    reservations: int = 16
    """How many gangs of a pool get reservations under the backfill rule."""
    surplus: bool = False
    """Whether elastic gangs may be asked for the pods above their smallest size."""
    repairs_preempt: bool = False
    """Whether a broken gang may send others away as a waiting one may."""
    moves: MoveBudget | None = None
    """Whether running gangs may be moved for others and for free racks, and what that may cost."""
    move_back: bool = False
    """Whether a running gang moves to a pool that it would rather have, within `moves`."""
