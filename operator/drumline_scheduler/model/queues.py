"""Queues: a team's quota, and which running jobs its jobs may preempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from drumline_scheduler.model.capacity import ANY_PRICE, PriceRule

DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3_600


class WithinQueue(StrEnum):
    """Which jobs of its own queue a job may preempt."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class Reclaim(StrEnum):
    """Which jobs of other queues of its cohort a job may preempt, to use its own queue's quota."""

    NEVER = "Never"
    ANY = "Any"
    """Any job of a queue that holds more than its nominal quota, whatever its priority."""
    FAIR_SHARE = "FairShare"
    """The same, and also to borrow: as long as the other queue's weighted share of what is borrowed
    stays the larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRule:
    """What jobs of a queue may do to running ones; by default they wait."""

    within_queue: WithinQueue = WithinQueue.NEVER
    reclaim: Reclaim = Reclaim.NEVER


class WhenSpent(StrEnum):
    """What becomes of a queue's gangs once its budget is spent."""

    REFUSE = "Refuse"
    """No pending one starts; those that run go on."""
    WARN = "Warn"
    """Nothing but words."""
    EXPIRE = "Expire"
    """No pending one starts, and those that run save and leave."""


class Refill(StrEnum):
    """When a budget is there again, by the calendar (UTC)."""

    WEEKLY = "Weekly"
    """On Mondays."""
    MONTHLY = "Monthly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much the jobs of a queue may have in a time. What they had is `Snapshot.spent`."""

    gpu_hours: int | None = None
    """None: any number."""
    window_days: int = 0
    """Days (UTC) that count, today included; 0 where it is refilled."""
    refill: Refill | None = None
    credit_gpu_hours: int = 0
    """Taken from the next refill before it comes."""
    when_spent: WhenSpent = WhenSpent.REFUSE
    cost: int | None = None
    """What they may cost in the same time, in millionths (`api.money`); None: any amount."""
    user_gpu_hours: int | None = None
    """GPU-hours that the gangs of each user may have in the same time; None: all of them."""

    def __post_init__(self) -> None:
        """Reject a budget of nothing or without a bound, a time that is none, and endless credit.

        Raises:
            ValueError: with the field.
        """
        if (self.refill is None) != (self.window_days >= 1):
            raise ValueError(f"a budget needs a window of at least 1 day, or a refill: {self}")
        if self.credit_gpu_hours and (self.refill is None or self.gpu_hours is None):
            raise ValueError(
                f"credit comes from the next refill, so the budget needs a refill: {self}"
            )
        bounds = (self.gpu_hours, self.cost, self.user_gpu_hours)
        if not any(bounds) or any(bound is not None and bound < 1 for bound in bounds):
            raise ValueError(f"a budget needs a limit, and each limit must be above 0: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A team's quota. Its usage follows from `Snapshot.admitted`.

    Queues that name the same parent form a cohort with it: each may use what the others leave of
    their nominal quota. A queue whose parent does not exist, or that is its own ancestor, stands
    alone.
    """

    name: str
    nominal: Mapping[str, int]
    """GPUs by pool. A pool that is not listed is closed to the queue's jobs; 0 opens it for what
    can be borrowed there."""
    max_priority: int | None = None
    namespaces: frozenset[str] | None = None
    """Which namespaces may use it; None means all."""
    namespace_labels: str = ""
    """By which labels some of them were chosen, for messages; '': by none."""
    held: bool = False
    """Its waiting gangs do not start."""
    drained: bool = False
    """Its running gangs save and leave; it is held then, too."""
    parent: str | None = None
    borrowing_limit: Mapping[str, int] | None = None
    """How many GPUs of a pool it may hold above its quota; None, or a pool left out: no limit."""
    lending_limit: Mapping[str, int] | None = None
    """How many GPUs of its quota others may use; None, or a pool left out: all of it."""
    preemption: PreemptionRule = PreemptionRule()
    min_runtime_seconds: float = 0.0
    """Its jobs are not preempted before they have run that long."""
    weight: float = 1.0
    """How much of what is shared it is due beside its siblings; above 0."""
    user_limit: Mapping[str, int] | None = None
    """The most GPUs of a pool that one user's jobs may hold in it; None, or a pool left out: no
    limit."""
    budget: Budget | None = None
    """Its waiting gangs do not start once this is spent; None: no limit."""
    price_rule: PriceRule = ANY_PRICE
    """Which pools its jobs use, by capacity type and price, and in which order."""

    @property
    def limits_users(self) -> bool:
        """Whether what starts depends on whose it is."""
        in_time = self.budget is not None and self.budget.user_gpu_hours is not None
        return bool(self.user_limit) or in_time

    def __post_init__(self) -> None:
        """Reject a weight that no share can be divided by, and what leaves to come back at once.

        Raises:
            ValueError: with the queue.
        """
        if not self.weight > 0:
            raise ValueError(f"queue {self.name}: weight must be above 0, not {self.weight}")
        if self.drained and not self.held:
            raise ValueError(f"queue {self.name}: what is drained is held, too")
