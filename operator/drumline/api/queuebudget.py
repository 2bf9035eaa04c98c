"""The budget of a TrainingQueue: what its jobs may have in a time, and what they had."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline.api.base import ApiModel, Rule, Timestamp, keyed_by


class QueueBudget(ApiModel):
    """How many GPU-hours the jobs of this queue may have in a time."""

    gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)]
    """GPU-hours, over all pools: one GPU held for one hour is one, whatever it is used for."""
    window_days: Annotated[int, Field(ge=1, le=92)] | None = None
    """Days (UTC) that count, today included: what was had earlier flows back, a day each
    midnight. Absent: refill says when."""
    refill: Literal["Weekly", "Monthly"] | None = None
    """Instead of windowDays: all is there again at the beginning of each week (Monday) or month, in
    UTC, but for what was had beyond the budget in the one before."""
    credit_gpu_hours: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """GPU-hours of the next refill that may be had before it. Needs refill. Absent: none."""
    when_spent: Literal["Refuse", "Warn", "Expire"] = "Refuse"
    """Refuse: no waiting job starts and none grows; those that run go on, and their hours count.
    Warn: nothing is kept from anybody; decide, drumline queue, alerts and messages say it. Expire:
    as Refuse, and those that run save, give their GPUs up and wait. Default: Refuse."""

    rules: ClassVar[tuple[Rule, ...]] = (
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
