"""GpuPools and Nodes, as far as rows read them."""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.overview.object_parts import ObjectMetadata, ObjectPart

GPU_RESOURCE: Final = "nvidia.com/gpu"


class PoolLevel(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of spec.topologyLevels."""

    name: str
    node_label: str


class CapacityOfPool(ObjectPart, frozen=True, rename="camel", gc=False):
    """spec.capacity of a pool."""

    type: str = "OnDemand"
    price_per_gpu_hour: str = ""


class PartitionOfPool(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of spec.partitions.resources of a pool."""

    resource: str
    parts: int = 1


class PartitionsOfPool(ObjectPart, frozen=True, rename="camel", gc=False):
    """spec.partitions of a pool."""

    parts_per_gpu: int
    resources: list[PartitionOfPool] = msgspec.field(default_factory=list[PartitionOfPool])


class DevicesOfPool(ObjectPart, frozen=True, rename="camel", gc=False):
    """spec.devices of a pool."""

    driver: str


class PoolSpec(ObjectPart, frozen=True, rename="camel", gc=False):
    """Which nodes a pool has."""

    node_selector: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    gpu_resource: str = GPU_RESOURCE
    topology_levels: list[PoolLevel] | None = None
    capacity: CapacityOfPool = CapacityOfPool()
    devices: DevicesOfPool | None = None
    partitions: PartitionsOfPool | None = None


class PoolNodeHealth(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.nodeHealth: what is known against a node."""

    node: str
    quarantined_at: str | None = None
    message: str = ""


class PoolStatus(ObjectPart, frozen=True, rename="camel", gc=False):
    """What the operator last saw of a pool."""

    node_health: list[PoolNodeHealth] | None = None


class PoolObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A GpuPool."""

    metadata: ObjectMetadata
    spec: PoolSpec = PoolSpec()
    status: PoolStatus = PoolStatus()


class NodeTaint(ObjectPart, frozen=True, rename="camel", gc=False):
    """A taint of a node."""

    key: str
    effect: str = ""
    value: str = ""


class NodeGate(ObjectPart, frozen=True, rename="camel", gc=False):
    """What keeps pods off a node."""

    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class NodeCondition(ObjectPart, frozen=True, rename="camel", gc=False):
    """A condition of a node."""

    type: str
    status: str
    message: str = ""


class NodeReport(ObjectPart, frozen=True, rename="camel", gc=False):
    """What a node offers and reports."""

    allocatable: dict[str, str] | None = None
    conditions: list[NodeCondition] | None = None


class NodeObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A Node."""

    metadata: ObjectMetadata
    spec: NodeGate = NodeGate()
    status: NodeReport = NodeReport()


class DeviceOfSlice(ObjectPart, frozen=True, rename="camel", gc=False):
    """A device, without what it is."""

    name: str


class SliceSpec(ObjectPart, frozen=True, rename="camel", gc=False):
    """Whose devices a ResourceSlice lists."""

    driver: str
    node_name: str | None = None
    devices: list[DeviceOfSlice] | None = None


class SliceObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A ResourceSlice: devices of Dynamic Resource Allocation."""

    spec: SliceSpec
