"""GpuPool: a set of nodes with the same GPUs and the names of its network levels."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline.api.base import (
    WRITTEN_AS_ONE,
    ApiModel,
    LabelKey,
    LabelValue,
    Name,
    Rule,
    keyed_by,
    name_rule,
)
from drumline.api.conditions import Condition


class TopologyLevel(ApiModel):
    """One level of the network: nodes with the same value of `nodeLabel` share a domain."""

    name: Name
    """What jobs call it in spec.topology, for instance rack."""
    node_label: LabelKey
    """Node label whose value names the domain, for instance topology.example.com/rack."""


class GpuPoolSpec(ApiModel):
    """Which nodes form the pool and how they are wired."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=16)]
    """Labels a node must have to be in the pool; at least one. A node belongs to one pool:
    of several that select it, to the oldest, and all of them have the condition Overlapping."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Resource that counts the GPUs of a node. Default: nvidia.com/gpu. Never changes."""
    topology_levels: Annotated[
        list[TopologyLevel] | None, Field(max_length=8, json_schema_extra=keyed_by("name"))
    ] = None
    """Levels of the network, broadest first, for instance block, rack, clique."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.gpuResource.matches('^[^/]+/[^/]+$')"
            " && !self.gpuResource.matches('^([^/]*[.])?kubernetes[.]io/')",
            message="gpuResource is a device resource named domain/name; write nvidia.com/gpu",
            field_path=".gpuResource",
        ),
        Rule(
            rule="self.gpuResource == oldSelf.gpuResource",
            message="gpuResource may never change; create another GpuPool",
            field_path=".gpuResource",
        ),
        Rule(
            rule="!has(self.topologyLevels) || self.topologyLevels.all(one,"
            " self.topologyLevels.exists_one(other, other.nodeLabel == one.nodeLabel))",
            message="topologyLevels: two levels have the same nodeLabel; give each its own",
            field_path=".topologyLevels",
        ),
    )


class GpuPoolStatus(ApiModel):
    """What the operator last saw of the pool."""

    observed_generation: int | None = None
    """metadata.generation this status is about."""
    conditions: Annotated[
        list[Condition] | None, Field(max_length=8, json_schema_extra=keyed_by("type"))
    ] = None
    """What is true of it: Ready, and Overlapping (another pool selects the same nodes), Degraded or
    Stalled where they hold."""
    nodes: int | None = None
    """Nodes of the pool."""
    total_gpus: int | None = None
    """GPUs that these nodes can allocate."""
    used_gpus: int | None = None
    """GPUs held by pods, foreign ones included."""
    gpus: Annotated[str | None, Field(max_length=32)] = None
    """`used/total`, for the printer column."""


class GpuPool(ApiModel):
    """Nodes with the same GPUs that one gang may spread over."""

    KIND: ClassVar[str] = "GpuPool"

    spec: GpuPoolSpec
    """What is wanted."""
    status: Annotated[GpuPoolStatus | None, Field(json_schema_extra=WRITTEN_AS_ONE)] = None
    """What is; written by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        name_rule(kind="GpuPool", longest=63, why="jobs and quotas name it in one label"),
    )
