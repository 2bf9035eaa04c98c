"""The scheduling policy of a cluster: `scheduling` in the chart's values.

Not a kind: the operator reads it from its Deployment, and `drumline decide --policy` from a file
with the same keys. Unlike a kind it rejects unknown keys, because no API server prunes them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from drumline_api.base import ApiModel


class MovesPolicy(ApiModel):
    """How much moving running jobs may cost, over all jobs that move at the same time."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[int, Field(ge=1, le=1000)] = 8
    """The most jobs that are moved at a time. Default: 8."""
    gpu_seconds: Annotated[float, Field(ge=0, le=1e12)] = 3600.0
    """The most GPU-seconds that they may lose together, restarts included. Default: 3600."""


class PreemptionLimitPolicy(ApiModel):
    """How often a job may be preempted before it is spared for a while."""

    model_config = ConfigDict(extra="forbid")

    times: Annotated[int, Field(ge=1, le=16)] = 3
    """A job that was preempted so often within windowSeconds is no victim of its own queue's jobs,
    and is not moved; what it borrows other queues reclaim. Default: 3."""
    window_seconds: Annotated[float, Field(ge=1, le=604_800)] = 3600.0
    """By so much a job of the same queue is held up by it at most. Default: 3600."""


class SchedulingPolicy(ApiModel):
    """How waiting jobs are ordered, and what one that cannot start does to those behind it."""

    model_config = ConfigDict(extra="forbid")

    waiting: Literal["BestEffort", "Strict", "Backfill"] = "BestEffort"
    """BestEffort: whatever fits starts, and a large job can starve behind small ones. Strict: a job
    that waits holds back those behind it. Backfill: the first ones get reservations, and others
    start only if none of these slips. Default: BestEffort."""
    order: Literal["Priority", "FairShare"] = "Priority"
    """Priority: higher priority first, then who has waited longer. FairShare: queues take turns,
    the one with the smallest share by weight first. Default: Priority."""
    reservations: Annotated[int, Field(ge=1, le=1000)] = 16
    """Jobs of a pool that get reservations under Backfill. Default: 16."""
    history_half_life_seconds: Annotated[float, Field(ge=60, le=31_536_000)] = 86_400.0
    """After so long half of what a queue has used is forgotten, under FairShare. Default: 86400, a
    day."""
    history_weight: Annotated[float, Field(ge=0, le=1000)] = 4.0
    """What past use counts beside what a queue holds now; 0: nothing. Default: 4."""
    restart_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """What preempting a job is taken to cost each of its GPUs beside lost work. Default: 60."""
    priority_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """What each step of a victim's priority is taken to cost each of its GPUs. Default: 60."""
    surplus: bool = False
    """Whether elastic jobs may be asked for the pods above minNodes instead of leaving. Default:
    false."""
    repairs_preempt: bool = False
    """Whether a job that lost members may preempt for their places as a waiting one may. Default:
    false."""
    preemption_limit: PreemptionLimitPolicy | None = None
    """From how many preemptions on a job is spared, so that none is preempted again and again
    before it gets anywhere. Absent: from none on.
    """
    moves: MovesPolicy | None = None
    """Whether running jobs may be asked to save and to start again elsewhere, so that whole domains
    come free, and what that may cost. Absent: they stay."""
    move_back: bool = False
    """Whether a running job moves to a pool that it names before its own once that has room, within
    moves. Default: false."""
