"""TrainingQueue: a team's share of the GPUs. Cluster-scoped, written by the platform team."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline.api.base import DISTINCT, ApiModel, Name, Rule, keyed_by, name_rule


class PoolQuota(ApiModel):
    """How many GPUs of one pool the jobs of this queue may hold together."""

    gpu_pool: Name
    """Name of the GpuPool."""
    nominal_gpus: Annotated[int, Field(ge=0, le=10_000_000)]
    """GPUs; 0 admits nothing to this pool."""


class TrainingQueueSpec(ApiModel):
    """How much a team may hold, and which jobs may ask for it."""

    quotas: Annotated[
        list[PoolQuota], Field(min_length=1, max_length=32, json_schema_extra=keyed_by("gpuPool"))
    ]
    """One entry a GpuPool; jobs of this queue run in these pools only."""
    namespaces: Annotated[
        list[Name] | None, Field(min_length=1, max_length=256, json_schema_extra=DISTINCT)
    ] = None
    """Namespaces whose jobs may use this queue; absent: all."""
    max_priority: Annotated[int, Field(ge=-2_147_483_648, le=1_000_000_000)] | None = None
    """Highest priority value a job in this queue may have; absent: no limit."""


class PoolUsage(ApiModel):
    """What the queue holds of one pool."""

    gpu_pool: Annotated[str, Field(max_length=253)]
    """Name of the GpuPool."""
    nominal_gpus: int
    """GPUs the quota allows."""
    used_gpus: int
    """GPUs held by admitted jobs."""


class TrainingQueueStatus(ApiModel):
    """What the operator last saw of the queue."""

    admitted_jobs: int | None = None
    """Jobs that hold GPUs."""
    pending_jobs: int | None = None
    """Jobs that wait."""
    usage: Annotated[
        list[PoolUsage] | None, Field(max_length=32, json_schema_extra=keyed_by("gpuPool"))
    ] = None
    """GPUs held, by pool."""
    gpus: Annotated[str | None, Field(max_length=32)] = None
    """`used/nominal` over all pools, for the printer column."""


class TrainingQueue(ApiModel):
    """A team's share of the GPUs: quotas by GpuPool, and who may use them."""

    KIND: ClassVar[str] = "TrainingQueue"

    spec: TrainingQueueSpec
    """What is wanted."""
    status: TrainingQueueStatus | None = None
    """What is; written by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        name_rule(kind="TrainingQueue", longest=63, why="pods carry it as a label"),
    )
