"""GpuPool: a set of nodes with the same GPUs and the names of its network levels."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline.api.base import ApiModel, LabelKey, LabelValue, Name


class TopologyLevel(ApiModel):
    """One level of the network: nodes with the same value of `nodeLabel` share a domain."""

    name: Name
    node_label: LabelKey


class GpuPoolSpec(ApiModel):
    """Desired state of a GpuPool."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=16)]
    gpu_resource: LabelKey = "nvidia.com/gpu"
    topology_levels: Annotated[list[TopologyLevel] | None, Field(max_length=8)] = None
    """Broadest first, for instance block, rack, clique."""


class GpuPoolStatus(ApiModel):
    """Observed state of a GpuPool."""

    nodes: int | None = None
    total_gpus: int | None = None
    used_gpus: int | None = None
    gpus: Annotated[str | None, Field(max_length=32)] = None


class GpuPool(ApiModel):
    """Nodes that a gang may spread over."""

    KIND: ClassVar[str] = "GpuPool"

    spec: GpuPoolSpec
    status: GpuPoolStatus | None = None
