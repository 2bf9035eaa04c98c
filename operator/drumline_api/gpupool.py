"""GpuPool: a set of nodes with the same GPUs and the names of its network levels."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline_api.autoscaling import NodeSupplyStatus, PoolAutoscaling
from drumline_api.base import (
    WRITTEN_AS_ONE,
    ApiModel,
    LabelKey,
    LabelValue,
    Name,
    Rule,
    keyed_by,
    name_rule,
)
from drumline_api.capacity import CAPACITY_AGREES, InterruptionsStatus, PoolCapacity
from drumline_api.conditions import Condition
from drumline_api.nodehealth import NodeHealthSpec, NodeHealthStatus
from drumline_api.podprofile import PodProfile
from drumline_contract.hardware import GPU_MODELS


class TopologyLevel(ApiModel):
    """One level of the network: nodes with the same value of `nodeLabel` share a domain."""

    name: Name
    """What jobs call it in spec.topology, for instance rack."""
    node_label: LabelKey
    """Node label whose value names the domain, for instance topology.example.com/rack."""


class HardwareSpec(ApiModel):
    """What the GPUs of the pool are.

    For the planner, and to compare a job's memory with them before it waits. Nothing is placed by
    it.
    """

    gpu: Annotated[str, Field(json_schema_extra={"enum": list(GPU_MODELS)})]
    """Model of the GPUs."""
    network_gbps: Annotated[int, Field(ge=1, le=100_000)] = 400
    """Gigabits per second from each GPU to other nodes. Default: 400."""
    domain_gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """GPUs that reach each other without the network, such as the 72 of an NVL72. Absent: those of
    a pod."""
    domain_level: Name | None = None
    """Level of topologyLevels whose domains are these domainGpus, such as clique. Jobs without
    topology of their own then prefer whole tensor and context groups, or with parallelism.mode Auto
    whole domains, in one of them."""
    rack_gpus: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """GPUs below one leaf of the network, such as the 256 of a rack or a scalable unit. Absent: the
    network is flat."""
    rack_level: Name | None = None
    """Level of topologyLevels whose domains are these rackGpus, such as rack. Jobs without topology
    of their own then prefer whole pipeline stages and whole copies (replicate), or with
    parallelism.mode Auto as many neighbours as it holds, in one of them."""
    oversubscription: Annotated[int, Field(ge=1, le=64)] = 1
    """Times less bandwidth that a GPU has out of its rack than within it. Default: 1."""
    when_memory_exceeded: Literal["Warn", "Refuse"] = "Warn"
    """What becomes of a job whose layout cannot fit in these GPUs' memory by the planner's bill.
    Warn: condition ExceedsMemory, and it starts all the same. Refuse: condition InvalidConfig, and
    it does not. Default: Warn."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.domainLevel) || has(self.domainGpus)",
            message="domainLevel needs domainGpus: how many GPUs a domain of it has",
            field_path=".domainLevel",
        ),
        Rule(
            rule="!has(self.rackLevel) || has(self.rackGpus)",
            message="rackLevel needs rackGpus: how many GPUs a domain of it has",
            field_path=".rackLevel",
        ),
        Rule(
            rule="self.oversubscription == 1 || has(self.rackGpus)",
            message="oversubscription needs rackGpus: what leaves a rack is slower, so say how many"
            " GPUs that has",
            field_path=".oversubscription",
        ),
        Rule(
            rule="!has(self.rackGpus) || !has(self.domainGpus) || self.rackGpus >= self.domainGpus",
            message="rackGpus must be at least domainGpus: a domain lies within a rack",
            field_path=".rackGpus",
        ),
    )


class GpuPartition(ApiModel):
    """A part of a GPU that the device plugin offers as a resource of its own."""

    resource: LabelKey
    """Its resource, for instance nvidia.com/mig-1g.10gb."""
    parts: Annotated[int, Field(ge=1, le=64)]
    """How many parts of a GPU it is, of partsPerGpu."""


class GpuPartitions(ApiModel):
    """Parts of GPUs beside whole ones, on the nodes of one pool.

    Quotas, limits and sums of GPUs of such a pool count parts, so that they stay whole numbers.
    """

    parts_per_gpu: Annotated[int, Field(ge=2, le=64)]
    """What a whole GPU counts, such as 7: MIG divides the compute of most GPUs by seven. Never
    changes."""
    resources: Annotated[
        list[GpuPartition],
        Field(min_length=1, max_length=16, json_schema_extra=keyed_by("resource")),
    ]
    """The resources that jobs may name as gpuPartition."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.partsPerGpu == oldSelf.partsPerGpu",
            message="partitions.partsPerGpu may never change, as quotas count these parts; create"
            " another GpuPool",
            field_path=".partsPerGpu",
        ),
        Rule(
            rule="self.resources.all(each, each.parts <= self.partsPerGpu)",
            message="partitions: a partition has at most the partsPerGpu of a whole GPU; lower its"
            " parts",
            field_path=".resources",
        ),
        Rule(
            rule="self.resources.all(each, each.resource.matches('^[^/]+/[^/]+$')"
            " && !each.resource.matches('^([^/]*[.])?kubernetes[.]io/'))",
            message="partitions: a resource is named domain/name; write nvidia.com/mig-1g.10gb",
            field_path=".resources",
        ),
    )


DriverName = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]

DeviceClassName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
"""A DNS-1123 subdomain."""


class GpuDevices(ApiModel):
    """GPUs that Drumline allocates by Dynamic Resource Allocation, where no device plugin runs."""

    driver: DriverName
    """Who publishes them in ResourceSlices, for instance gpu.nvidia.com."""
    device_class_name: DeviceClassName
    """DeviceClass that the claims name, for instance gpu.nvidia.com. What it says of devices is not
    read: it has to select every whole device of the driver."""


class GpuPoolSpec(ApiModel):
    """Which nodes form the pool and how they are wired."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=16)]
    """Labels a node must have to be in the pool; at least one. A node belongs to one pool:
    of several that select it, to the oldest, and all of them have the condition Overlapping."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Resource that counts the GPUs of a node. Default: nvidia.com/gpu. Never changes."""
    partitions: GpuPartitions | None = None
    """Parts of GPUs that the nodes offer beside whole ones, as MIG's mixed strategy does. Jobs get
    such a pool only by naming it as gpuPool. Absent: none. Never added or removed later."""
    devices: GpuDevices | None = None
    """The GPUs are devices of Dynamic Resource Allocation; pods ask for them as gpuResource all
    the same. Needs dynamicResources.enabled of the chart. Absent: a device plugin offers
    gpuResource. Never added or removed later."""
    topology_levels: Annotated[
        list[TopologyLevel] | None, Field(max_length=8, json_schema_extra=keyed_by("name"))
    ] = None
    """Levels of the network, broadest first, for instance block, rack, clique."""
    capacity: PoolCapacity | None = None
    """What the nodes cost, and whether the cloud may take them back. Absent: OnDemand, and no price
    is known."""
    hardware: HardwareSpec | None = None
    """What the GPUs are. Absent: the ranks look, and no job's memory is looked at before."""
    pod_profile: PodProfile | None = None
    """What the pods of all jobs in this pool get beside what the jobs say: folders of the node,
    capabilities, sidecars, as fast networks need them. Absent: nothing."""
    autoscaling: PoolAutoscaling | None = None
    """How an autoscaler is asked for nodes when jobs wait. Absent: not at all."""
    node_health: NodeHealthSpec | None = None
    """What follows from what is known against nodes. Absent: as with the defaults."""

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
            rule="has(self.partitions) == has(oldSelf.partitions)",
            message="partitions may never be added or removed, as quotas count parts with them;"
            " create another GpuPool",
            field_path=".partitions",
        ),
        Rule(
            rule="has(self.devices) == has(oldSelf.devices)",
            message="devices may never be added or removed, as pods run that have theirs the other"
            " way; create another GpuPool",
            field_path=".devices",
        ),
        Rule(
            rule="!has(self.devices) || (!has(self.partitions) && !has(self.autoscaling))",
            message="devices: whole GPUs of nodes that stand are allocated; remove partitions and"
            " autoscaling",
            field_path=".devices",
        ),
        Rule(
            rule="!has(self.partitions) || self.partitions.resources.all(each,"
            " each.resource != self.gpuResource)",
            message="partitions: gpuResource counts whole GPUs; remove it from the partitions",
            field_path=".partitions",
        ),
        Rule(
            rule="!has(self.partitions) || !has(self.autoscaling)",
            message="autoscaling asks for whole GPUs; remove it, or the partitions",
            field_path=".autoscaling",
        ),
        Rule(
            rule="!has(self.topologyLevels) || self.topologyLevels.all(one,"
            " self.topologyLevels.exists_one(other, other.nodeLabel == one.nodeLabel))",
            message="topologyLevels: two levels have the same nodeLabel; give each its own",
            field_path=".topologyLevels",
        ),
        Rule(
            rule="!has(self.autoscaling) || self.gpuResource in self.autoscaling.node.allocatable",
            message="autoscaling.node.allocatable says how many GPUs a new node has; add"
            " gpuResource (nvidia.com/gpu where it is absent)",
            field_path=".autoscaling.node.allocatable",
        ),
        CAPACITY_AGREES,
    )


class StepPartStatus(ApiModel):
    """How far the planner is off in one part of a step."""

    part: Annotated[str, Field(max_length=32)]
    """compute, tensor, context, expert, data, pipeline (waiting for messages of that axis),
    optimizer or rest."""
    percent: int
    """Measured seconds over predicted ones: 100 is as predicted."""


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
    """GPUs held by pods, foreign ones included; in a pool with partitions parts of them, as
    totalGpus."""
    step_time_percent: int | None = None
    """Step time of its running jobs over what the planner predicts for them, the median in percent:
    100 is as predicted. As last known; `drumline plan` reads it where it is given the pool."""
    step_parts: Annotated[
        list[StepPartStatus] | None, Field(max_length=8, json_schema_extra=keyed_by("part"))
    ] = None
    """The same by part of a step, with which `drumline plan` corrects each part of its own."""
    node_health: Annotated[
        list[NodeHealthStatus] | None, Field(max_length=64, json_schema_extra=keyed_by("node"))
    ] = None
    """Nodes that something speaks against, and which of them are quarantined."""
    quarantined_nodes: int | None = None
    """How many are. Absent: none."""
    autoscaling: NodeSupplyStatus | None = None
    """How the autoscaler has answered so far. Absent: it was never asked."""
    interruptions: InterruptionsStatus | None = None
    """How often nodes of the pool were taken back. Absent: it is not spot."""
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
