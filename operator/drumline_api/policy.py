"""Define the scheduling policy of a cluster: `scheduling` in the chart's values.

The policy is not a kind. The operator reads it from its Deployment, and `drumline decide --policy`
reads it from a file with the same keys. Unlike a kind it rejects unknown keys, because no API
server prunes them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from drumline_api.base import ApiModel


class MovesPolicy(ApiModel):
    """Limits on the cost of moving running jobs, over all concurrent moves."""

    # The base class ignores unknown keys, which here would hide a typo in the chart's values.
    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[int, Field(ge=1, le=1000)] = 8
    """Maximum number of jobs that move at once. Default: 8."""
    gpu_seconds: Annotated[float, Field(ge=0, le=1e12)] = 3600.0
    """Maximum number of GPU-seconds that moving jobs may lose together, including restarts.
    Default: 3600."""


class PreemptionLimitPolicy(ApiModel):
    """Number of preemptions after which a job is exempt from preemption for a while."""

    model_config = ConfigDict(extra="forbid")

    times: Annotated[int, Field(ge=1, le=16)] = 3
    """Number of preemptions within windowSeconds after which jobs of its own queue no longer
    preempt or move the job. Other queues can still reclaim GPUs that the job borrows. Default:
    3."""
    window_seconds: Annotated[float, Field(ge=1, le=604_800)] = 3600.0
    """Length of the window in seconds. The exempt job delays another job of its queue by at most
    this time. Default: 3600."""


class SchedulingPolicy(ApiModel):
    """Order of pending jobs, and the effect of a job that cannot start on the jobs behind it."""

    model_config = ConfigDict(extra="forbid")

    waiting: Literal["BestEffort", "Strict", "Backfill"] = "BestEffort"
    """BestEffort: every job that fits starts, so a large job can starve behind small ones. Strict:
    a pending job blocks the jobs behind it. Backfill: the first jobs get reservations, and other
    jobs start only if they delay no reservation. Default: BestEffort."""
    order: Literal["Priority", "FairShare"] = "Priority"
    """Priority: higher priority first, then longer wait first. FairShare: queues alternate, and the
    queue with the smallest weighted share comes first. Default: Priority."""
    reservations: Annotated[int, Field(ge=1, le=1000)] = 16
    """Number of jobs per pool that get reservations under Backfill. Default: 16."""
    history_half_life_seconds: Annotated[float, Field(ge=60, le=31_536_000)] = 86_400.0
    """Half-life of a queue's past usage under FairShare, in seconds. Default: 86400 (one day)."""
    history_weight: Annotated[float, Field(ge=0, le=1000)] = 4.0
    """Weight of past usage relative to current usage. 0: past usage does not count. Default: 4."""
    restart_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Assumed cost of preempting a job, in seconds per GPU, in addition to lost work. Default:
    60."""
    priority_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Assumed cost of each priority step of a victim, in seconds per GPU. Default: 60."""
    surplus: bool = False
    """If true, elastic jobs can give up pods above minNodes instead of being preempted. Default:
    false."""
    repairs_preempt: bool = False
    """If true, a job that lost members may preempt for their replacements, as a pending job may.
    Default: false."""
    preemption_limit: PreemptionLimitPolicy | None = None
    """Number of preemptions after which a job is exempt from further preemption within the window.
    Unset: no limit."""
    preemption_delay_seconds: Annotated[float, Field(ge=0, le=604_800)] = 0.0
    """Seconds that a job must have waited in its queue before other jobs are preempted or moved for
    it. Free capacity is used at once. Default: 0."""
    overdue_seconds: Annotated[float, Field(ge=0, le=86_400)] = 120.0
    """A pod or job that should have left its nodes this long ago counts as staying. The scheduler
    no longer waits for it, and releases the nodes that were kept for others meanwhile. Default:
    120."""
    moves: MovesPolicy | None = None
    """Limits on moves of running jobs (save and start elsewhere) that free whole domains. Unset:
    running jobs do not move."""
    move_back: bool = False
    """If true, a running job moves to a pool listed earlier in `gpuPools` when that pool has enough
    free GPUs. Subject to `moves`. Default: false."""
