"""Queues: the quota of a team, and which running jobs its jobs may preempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from drumline_scheduler.model.capacity import ANY_PRICE, PriceRule

DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3_600


class WithinQueue(StrEnum):
    """Jobs of its own queue that a job may preempt."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class Reclaim(StrEnum):
    """Jobs of other queues of its cohort that a job may preempt to use its own queue's quota."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    """Jobs of lower priority of a queue that holds more than its nominal quota."""
    ANY = "Any"
    """Any job of a queue that holds more than its nominal quota, whatever its priority."""
    FAIR_SHARE = "FairShare"
    """Like `ANY`. A job may also preempt to borrow, as long as the other queue's weighted share of
    the borrowed GPUs stays larger."""
    OVERRIDE = "Override"
    """Any job, also of a queue within its nominal quota. Only for a job with an `Override`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRule:
    """The running jobs that jobs of a queue may preempt. By default they wait."""

    within_queue: WithinQueue = WithinQueue.NEVER
    reclaim: Reclaim = Reclaim.NEVER


class WhenSpent(StrEnum):
    """The effect of a spent budget on the gangs of its queue."""

    REFUSE = "Refuse"
    """No pending gang starts. Running gangs continue."""
    WARN = "Warn"
    """Only messages and alerts."""
    EXPIRE = "Expire"
    """No pending gang starts. Running gangs save and leave."""


class Refill(StrEnum):
    """The start of a new budget period, by the calendar (UTC)."""

    WEEKLY = "Weekly"
    """Periods start on Mondays."""
    MONTHLY = "Monthly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on what the jobs of a queue may use in a period.

    `Snapshot.spent` has the use so far.
    """

    gpu_hours: int | None = None
    """GPU-hours of all jobs. None: no limit."""
    window_days: int = 0
    """Length of the sliding window in days (UTC), including today. 0 if `refill` is set."""
    refill: Refill | None = None
    credit_gpu_hours: int = 0
    """GPU-hours that jobs may take in advance from the next period."""
    when_spent: WhenSpent = WhenSpent.REFUSE
    cost: int | None = None
    """Cost of all jobs in the same period, in millionths (`api.money`). None: no limit."""
    user_gpu_hours: int | None = None
    """GPU-hours of each user in the same period. None: no limit."""

    def __post_init__(self) -> None:
        """Reject a budget without a limit or a period, limits below 1, and credit without a refill.

        Raises:
            ValueError: with the field.
        """
        # Exactly one of window and refill.
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
class Override:
    """A permission for one job to take GPUs that other queues are guaranteed."""

    job: str
    """`namespace/name`."""
    until: float
    """Time at which it ends, on the clock of `now`."""
    granted_by: str
    reason: str

    def __str__(self) -> str:
        """Return who granted it, until when and why, for messages."""
        until = datetime.fromtimestamp(self.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"override until {until}, granted by {self.granted_by}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The quota of a team. `Snapshot.admitted` shows its usage.

    Queues that name the same parent form a cohort with it. Each of them may use the nominal quota
    that the others leave unused. A queue whose parent does not exist, or that is its own ancestor,
    has no cohort.
    """

    name: str
    nominal: Mapping[str, int]
    """GPUs by pool. The queue's jobs cannot use a pool that is not listed. 0 allows borrowing only.
    """
    max_priority: int | None = None
    namespaces: frozenset[str] | None = None
    """Namespaces that may use it. None: all namespaces."""
    namespace_labels: str = ""
    """Label selector that chose some of the namespaces, for messages. '': no selector."""
    held: bool = False
    """Its waiting gangs do not start."""
    drained: bool = False
    """Its running gangs save and leave. A drained queue is also held."""
    evicts_excess: bool = False
    """Its running gangs save and leave while it holds more than its quota allows."""
    lasting_nominal: Mapping[str, int] | None = None
    """Its quota if every node were healthy, for `evicts_excess`. None: `nominal`."""
    parent: str | None = None
    borrowing_limit: Mapping[str, int] | None = None
    """Most GPUs of a pool that it may hold above its quota. None, or a pool left out: no limit."""
    lending_limit: Mapping[str, int] | None = None
    """Most GPUs of its quota that others may use. None, or a pool left out: all of it."""
    preemption: PreemptionRule = PreemptionRule()
    min_runtime_seconds: float = 0.0
    """Its jobs are not preempted before they have run for this time."""
    weight: float = 1.0
    """Its share of borrowed GPUs relative to its siblings. Above 0."""
    user_limit: Mapping[str, int] | None = None
    """Most GPUs of a pool that one user's jobs may hold in it. None, or a pool left out: no limit.
    """
    budget: Budget | None = None
    """Its waiting gangs do not start once the budget is spent. None: no limit."""
    price_rule: PriceRule = ANY_PRICE
    """Pools that its jobs use, by capacity type and price, and their order."""
    overrides: tuple[Override, ...] = ()
    """Jobs of this queue that may preempt within the guarantee of other queues."""
    overridden: Mapping[str, int] | None = None
    """GPUs by pool of its quota that jobs with an override hold now. None: none."""

    @property
    def lasting(self) -> Mapping[str, int]:
        """GPUs by pool above which gangs are evicted. A short outage of nodes does not lower it."""
        return self.nominal if self.lasting_nominal is None else self.lasting_nominal

    @property
    def limits_users(self) -> bool:
        """True if a start depends on the gang's user."""
        # A limit on GPUs at a time, or on GPU-hours in a period.
        in_time = self.budget is not None and self.budget.user_gpu_hours is not None
        return bool(self.user_limit) or in_time

    def __post_init__(self) -> None:
        """Reject a weight that shares cannot be divided by, and a drained queue that is not held.

        A gang that leaves a drained queue would otherwise start again at once.

        Raises:
            ValueError: with the queue.
        """
        if not self.weight > 0:
            raise ValueError(f"queue {self.name}: weight must be above 0, not {self.weight}")
        if self.drained and not self.held:
            raise ValueError(f"queue {self.name}: what is drained is held, too")
