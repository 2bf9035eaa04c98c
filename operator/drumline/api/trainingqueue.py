"""TrainingQueue: a team's share of the GPUs. Cluster-scoped, written by the platform team."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline.api.base import ApiModel, Name


class PoolQuota(ApiModel):
    """How many GPUs of one pool the jobs of this queue may hold together."""

    gpu_pool: Name
    nominal_gpus: Annotated[int, Field(ge=0, le=10_000_000)]


class TrainingQueueSpec(ApiModel):
    """Desired state of a TrainingQueue."""

    quotas: Annotated[list[PoolQuota], Field(min_length=1, max_length=32)]
    namespaces: Annotated[list[Name] | None, Field(max_length=256)] = None
    """Namespaces whose jobs may use this queue; absent: all."""
    max_priority: Annotated[int, Field(ge=-2_147_483_648, le=1_000_000_000)] | None = None
    """Highest priority value a job in this queue may have; absent: no limit."""


class PoolUsage(ApiModel):
    """What the queue holds of one pool."""

    gpu_pool: str
    nominal_gpus: int
    used_gpus: int


class TrainingQueueStatus(ApiModel):
    """Observed state of a TrainingQueue."""

    admitted_jobs: int | None = None
    pending_jobs: int | None = None
    usage: Annotated[list[PoolUsage] | None, Field(max_length=32)] = None
    gpus: Annotated[str | None, Field(max_length=32)] = None
    """`used/nominal` over all pools, for the printer column."""


class TrainingQueue(ApiModel):
    """A queue with nominal quotas per GpuPool."""

    KIND: ClassVar[str] = "TrainingQueue"

    spec: TrainingQueueSpec
    status: TrainingQueueStatus | None = None
