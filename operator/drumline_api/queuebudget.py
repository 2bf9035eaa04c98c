"""The budget of a TrainingQueue: what its jobs may have in a time, and what they had."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Rule, Timestamp, keyed_by

MAX_USERS: Final = 64
Money = Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$", max_length=19)]
"""An amount in the currency of the pools' prices: a decimal with up to six places."""


class QueueBudget(ApiModel):
    """What the jobs of this queue may have in a time. Whatever of it is spent first counts."""

    gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """GPU-hours, over all pools: one GPU held for one hour is one, whatever it is used for. Absent:
    any number."""
    cost: Money | None = None
    """What the GPU-hours of all its jobs may cost in the time, above 0, by capacity.pricePerGpuHour
    of their pools when they were had; what has no price costs nothing. Absent: any amount."""
    user_gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """GPU-hours that the jobs of each user (spec.user of the job) may have in the same time, at
    most gpuHours. Absent: all of them."""
    window_days: Annotated[int, Field(ge=1, le=92)] | None = None
    """Days (UTC) that count, today included: what was had earlier flows back, a day each
    midnight. Absent: refill says when."""
    refill: Literal["Weekly", "Monthly"] | None = None
    """Instead of windowDays: all is there again at the beginning of each week (Monday) or month, in
    UTC, but for what was had beyond the budget in the one before."""
    credit_gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """GPU-hours of the next refill that may be had before it, at most gpuHours. Needs refill and
    gpuHours. Absent: none."""
    when_spent: Literal["Refuse", "Warn", "Expire"] = "Refuse"
    """Refuse: no waiting job starts and none grows; those that run go on, and their hours count.
    Warn: nothing is kept from anybody; decide, drumline queue, alerts and messages say it. Expire:
    as Refuse, and those that run save, give their GPUs up and wait. Default: Refuse."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.gpuHours) || has(self.cost) || has(self.userGpuHours)",
            message="a budget limits something; give one of gpuHours, cost, userGpuHours",
        ),
        Rule(
            rule="!has(self.cost) || self.cost.matches('[1-9]')",
            message="a budget of 0 is always spent; give a cost above 0, or use stopPolicy Hold",
            field_path=".cost",
        ),
        Rule(
            rule="!has(self.creditGpuHours)"
            " || (has(self.gpuHours) && self.creditGpuHours <= self.gpuHours)",
            message="creditGpuHours is taken from the next refill's gpuHours: at most as many; add"
            " gpuHours, or lower it",
            field_path=".creditGpuHours",
        ),
        Rule(
            rule="!has(self.userGpuHours) || !has(self.gpuHours)"
            " || self.userGpuHours <= self.gpuHours",
            message="userGpuHours is each user's part of gpuHours: at most as many; lower it",
            field_path=".userGpuHours",
        ),
        Rule(
            rule="has(self.windowDays) != has(self.refill)",
            message="a budget has windowDays or refill, and not both; remove one or add one",
            field_path=".windowDays",
        ),
        Rule(
            rule="!has(self.creditGpuHours) || has(self.refill)",
            message="creditGpuHours is taken from the next refill; add refill or remove it",
            field_path=".creditGpuHours",
        ),
    )


class DayOfUse(ApiModel):
    """What the queue had on one day."""

    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", max_length=10)]
    """The day (UTC)."""
    gpu_seconds: int
    """GPU-seconds held on it."""
    cost: Money | None = None
    """What they cost, by the prices at the time. Absent: nothing, or the budget has no cost."""


class UseOfUser(ApiModel):
    """What one user's jobs had."""

    user: Annotated[str, Field(max_length=253)]
    """spec.user of the jobs; empty: of those without."""
    days: Annotated[list[DayOfUse], Field(max_length=92, json_schema_extra=keyed_by("day"))]
    """By day, as far as these may count."""
    gpu_seconds_per_hour: Annotated[int, Field(ge=0)] | None = None
    """What the user's jobs spend in an hour if they hold what they hold now. Absent: nothing."""


class BudgetUse(ApiModel):
    """What a queue with a budget had, as of `until`."""

    spent_gpu_hours: int
    """Whole GPU-hours of the days that count."""
    until: Timestamp
    """Up to when is counted."""
    days: Annotated[
        list[DayOfUse] | None, Field(max_length=92, json_schema_extra=keyed_by("day"))
    ] = None
    """By day, the latest 92 on which there was any; also of jobs that are gone. For a new
    leader."""
    spent_cost: Money | None = None
    """What the GPU-hours of the days that count cost. Absent: the budget has no cost."""
    gpu_seconds_per_hour: Annotated[int, Field(ge=0)] | None = None
    """GPU-seconds that are spent in an hour if what is held now stays. Absent: none."""
    cost_per_hour: Money | None = None
    """What an hour costs then. Absent: nothing, or the budget has no cost."""
    users: Annotated[
        list[UseOfUser] | None,
        Field(max_length=MAX_USERS, json_schema_extra=keyed_by("user")),
    ] = None
    """By user, those with most; where the budget limits each of them."""
