"""Define the budget of a TrainingQueue: limits within a time window, and the usage."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Rule, Timestamp, keyed_by

MAX_USERS: Final = 64
# Text, because JSON numbers are floating-point in most clients.
Money = Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$", max_length=19)]
"""Amount in the currency of the pools' prices: a decimal with up to six places."""


class QueueBudget(ApiModel):
    """Limits on the usage of this queue's jobs within a time window.

    The first limit that is reached applies.
    """

    gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Maximum number of GPU-hours over all pools. One GPU held for one hour counts as one, whether
    or not it is used. Unset: no limit."""
    cost: Money | None = None
    """Maximum cost of the GPU-hours of all jobs, above 0. Each GPU-hour costs the
    capacity.pricePerGpuHour that its pool had at that time. GPU-hours in pools without a price cost
    nothing. Unset: no limit."""
    user_gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Maximum number of GPU-hours per user (spec.user of the job), at most gpuHours. Unset: only
    gpuHours applies."""
    window_days: Annotated[int, Field(ge=1, le=92)] | None = None
    """Length of the sliding window in days (UTC), including today. Usage from earlier days becomes
    available again, one day at each midnight. Unset: refill defines the window."""
    refill: Literal["Weekly", "Monthly"] | None = None
    """Use calendar periods instead of windowDays. The budget resets at the start of each week
    (Monday) or month, in UTC. Usage above the budget in the previous period is deducted."""
    credit_gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """GPU-hours of the next refill that can be used early, at most gpuHours. Needs refill and
    gpuHours. Unset: none."""
    when_spent: Literal["Refuse", "Warn", "Expire"] = "Refuse"
    """Action when the budget is used up. Refuse: no pending job starts and no job grows. Running
    jobs continue, and their hours count. Warn: jobs still start. decide, drumline queue, alerts and
    messages report the overrun. Expire: as Refuse. Running jobs also save, release their GPUs and
    wait. Default: Refuse."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # The rules compare single values, so their cost is constant.
        Rule(
            rule="has(self.gpuHours) || has(self.cost) || has(self.userGpuHours)",
            message="a budget needs a limit; set one of gpuHours, cost, userGpuHours",
        ),
        Rule(
            # An amount is above 0 if any of its digits is.
            rule="!has(self.cost) || self.cost.matches('[1-9]')",
            message="a budget of 0 is always used up; set a cost above 0, or use stopPolicy Hold",
            field_path=".cost",
        ),
        # More credit than a refill could never be paid back by the next period.
        Rule(
            rule="!has(self.creditGpuHours)"
            " || (has(self.gpuHours) && self.creditGpuHours <= self.gpuHours)",
            message="creditGpuHours comes from the next refill, so it must be at most gpuHours;"
            " add gpuHours, or lower it",
            field_path=".creditGpuHours",
        ),
        Rule(
            rule="!has(self.userGpuHours) || !has(self.gpuHours)"
            " || self.userGpuHours <= self.gpuHours",
            message="userGpuHours is the limit of each user within gpuHours, so it must be at"
            " most gpuHours; lower it",
            field_path=".userGpuHours",
        ),
        # Exactly one: two windows would give two answers to one question.
        Rule(
            rule="has(self.windowDays) != has(self.refill)",
            message="a budget needs exactly one of windowDays and refill; remove one or add one",
            field_path=".windowDays",
        ),
        Rule(
            rule="!has(self.creditGpuHours) || has(self.refill)",
            message="creditGpuHours comes from the next refill; add refill or remove it",
            field_path=".creditGpuHours",
        ),
    )


class DayOfUse(ApiModel):
    """Usage of the queue on one day."""

    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", max_length=10)]
    """Day (UTC)."""
    gpu_seconds: int
    """GPU-seconds used on the day."""
    cost: Money | None = None
    """Cost of the GPU-seconds, by the prices at the time. Unset: no cost, or the budget has no cost
    limit."""


class UseOfUser(ApiModel):
    """Usage of one user's jobs."""

    user: Annotated[str, Field(max_length=253)]
    """spec.user of the jobs. Empty: jobs without a user."""
    # 92 days: the longest window, and a bound of the object's size.
    days: Annotated[list[DayOfUse], Field(max_length=92, json_schema_extra=keyed_by("day"))]
    """Usage by day, for the days that may count."""
    gpu_seconds_per_hour: Annotated[int, Field(ge=0)] | None = None
    """GPU-seconds that the user's jobs use per hour if they keep their current GPUs. Unset:
    none."""


class BudgetUse(ApiModel):
    """Usage of a queue with a budget, up to `until`."""

    spent_gpu_hours: int
    """Whole GPU-hours used on the days that count."""
    until: Timestamp
    """Time up to which usage is counted."""
    days: Annotated[
        list[DayOfUse] | None, Field(max_length=92, json_schema_extra=keyed_by("day"))
    ] = None
    """Usage by day, for the latest 92 days with usage. Includes deleted jobs. A new leader reads
    it."""
    spent_cost: Money | None = None
    """Cost of the GPU-hours on the days that count. Unset: the budget has no cost limit."""
    gpu_seconds_per_hour: Annotated[int, Field(ge=0)] | None = None
    """GPU-seconds used per hour if all current GPUs stay allocated. Unset: none."""
    cost_per_hour: Money | None = None
    """Cost per hour at the current allocation. Unset: no cost, or the budget has no cost limit."""
    users: Annotated[
        # 64 users times 92 days bound the status to a few hundred KB.
        list[UseOfUser] | None,
        Field(max_length=MAX_USERS, json_schema_extra=keyed_by("user")),
    ] = None
    """Usage by user, for the users with the highest usage. Set if the budget limits each user."""
