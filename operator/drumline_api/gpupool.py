"""Define GpuPool: nodes with the same GPUs, and the names of its network levels."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline_api.autoscaling import NodeSupplyStatus, PoolAutoscaling
from drumline_api.base import (
    DISTINCT,
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
    """One level of the network. Nodes with the same value of `nodeLabel` share a domain."""

    name: Name
    """Name of the level in the spec.topology of jobs, such as rack."""
    node_label: LabelKey
    """Node label whose value names the domain, such as topology.example.com/rack."""


class HardwareSpec(ApiModel):
    """Hardware of the pool's GPUs.

    The planner uses it, and Drumline compares the memory of pending jobs with it. It does not
    affect placement.
    """

    # The planner knows the figures of these models only.
    gpu: Annotated[str, Field(json_schema_extra={"enum": list(GPU_MODELS)})]
    """GPU model."""
    network_gbps: Annotated[int, Field(ge=1, le=100_000)] = 400
    """Bandwidth from each GPU to other nodes, in gigabits per second. Default: 400."""
    domain_gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Number of GPUs that reach each other without the network, such as the 72 of an NVL72. Unset:
    the GPUs of one pod."""
    domain_level: Name | None = None
    """Level of topologyLevels whose domains have domainGpus GPUs, such as clique. Jobs without
    their own topology prefer to keep each tensor and context group in one domain. With
    parallelism.mode Auto, they prefer whole domains."""
    rack_gpus: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Number of GPUs below one leaf of the network, such as the 256 of a rack or a scalable unit.
    Unset: the network is flat."""
    rack_level: Name | None = None
    """Level of topologyLevels whose domains have rackGpus GPUs, such as rack. Jobs without their
    own topology prefer to keep each pipeline stage and each copy of the model (replicate) in one
    domain. With parallelism.mode Auto, they prefer to keep as many neighbors as a domain holds in
    one domain."""
    oversubscription: Annotated[int, Field(ge=1, le=64)] = 1
    """Ratio of a GPU's bandwidth within its rack to its bandwidth out of the rack. Default: 1."""
    when_memory_exceeded: Literal["Warn", "Refuse"] = "Warn"
    """Treatment of a job whose layout does not fit in the memory of these GPUs, by the planner's
    estimate. Warn: the job starts, with condition ExceedsMemory. Refuse: the job does not start,
    with condition InvalidConfig. Default: Warn."""

    # Each rule is cheap: it reads single integers, which have no size to estimate.
    rules: ClassVar[tuple[Rule, ...]] = (
        # A level without its size could not be compared with a layout.
        Rule(
            rule="!has(self.domainLevel) || has(self.domainGpus)",
            message="domainLevel needs domainGpus; set domainGpus to the number of GPUs in one"
            " of its domains",
            field_path=".domainLevel",
        ),
        Rule(
            rule="!has(self.rackLevel) || has(self.rackGpus)",
            message="rackLevel needs rackGpus; set rackGpus to the number of GPUs in one of its"
            " domains",
            field_path=".rackLevel",
        ),
        Rule(
            # 1 is the default, so a pool that leaves the field out passes.
            rule="self.oversubscription == 1 || has(self.rackGpus)",
            message="oversubscription needs rackGpus, because traffic that leaves a rack is"
            " slower; set rackGpus to the number of GPUs in a rack",
            field_path=".oversubscription",
        ),
        # CEL raises an error for an absent field. `true || error` is true, so `has` guards it.
        Rule(
            rule="!has(self.rackGpus) || !has(self.domainGpus) || self.rackGpus >= self.domainGpus",
            message="rackGpus must be at least domainGpus, because a domain lies within a rack",
            field_path=".rackGpus",
        ),
    )


class GpuPartition(ApiModel):
    """A part of a GPU that the device plugin offers as its own resource."""

    resource: LabelKey
    """Resource name, such as nvidia.com/mig-1g.10gb."""
    parts: Annotated[int, Field(ge=1, le=64)]
    """Size of the partition, in units of 1/partsPerGpu of a GPU."""


class GpuPartitions(ApiModel):
    """GPU partitions beside whole GPUs, on the nodes of one pool.

    Quotas, limits and GPU sums of such a pool count parts, so that they stay whole numbers.
    """

    parts_per_gpu: Annotated[int, Field(ge=2, le=64)]
    """Number of parts in a whole GPU, such as 7: MIG divides the compute of most GPUs by seven.
    Never changes."""
    resources: Annotated[
        list[GpuPartition],
        # A list map keyed by the resource: the server rejects a resource that is listed twice.
        Field(min_length=1, max_length=16, json_schema_extra=keyed_by("resource")),
    ]
    """Resources that jobs may name in gpuPartition."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # Quotas would change their unit silently, so the field is frozen.
        Rule(
            rule="self.partsPerGpu == oldSelf.partsPerGpu",
            message="partitions.partsPerGpu may never change, because quotas count these parts;"
            " create another GpuPool",
            field_path=".partsPerGpu",
        ),
        Rule(
            rule="self.resources.all(each, each.parts <= self.partsPerGpu)",
            message="partitions: a partition has at most partsPerGpu parts, as many as a whole"
            " GPU; lower its parts",
            field_path=".resources",
        ),
        # kubernetes.io names are native resources, which no device plugin can offer.
        Rule(
            rule="self.resources.all(each, each.resource.matches('^[^/]+/[^/]+$')"
            " && !each.resource.matches('^([^/]*[.])?kubernetes[.]io/'))",
            message="partitions: a resource name must be domain/name; for example"
            " nvidia.com/mig-1g.10gb",
            field_path=".resources",
        ),
    )


# The schema bounds the name, so the rules on it have a small estimated cost.
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
    """GPUs that Drumline allocates by Dynamic Resource Allocation, without a device plugin."""

    driver: DriverName
    """Driver that publishes the GPUs in ResourceSlices, such as gpu.nvidia.com."""
    device_class_name: DeviceClassName
    """DeviceClass that the claims name, such as gpu.nvidia.com. Drumline does not read its
    selectors: the class must select every whole device of the driver."""


class GpuPoolSpec(ApiModel):
    """Desired state of a GpuPool: its nodes and their network."""

    # At least one label: an empty selector would select every node of the cluster.
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=16)]
    """Labels that select the pool's nodes; at least one. If several pools select a node, it belongs
    to the oldest of them. All of these pools then have the condition Overlapping."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Resource that counts the GPUs of a node. Default: nvidia.com/gpu. Never changes."""
    partitions: GpuPartitions | None = None
    """GPU partitions that the nodes offer beside whole GPUs, as with MIG's mixed strategy. Jobs use
    such a pool only if they name it in gpuPool. Unset: no partitions. Cannot be added or removed
    later."""
    auxiliary_resources: Annotated[
        list[LabelKey] | None, Field(max_length=32, json_schema_extra=DISTINCT)
    ] = None
    """Devices of the nodes that jobs may request in resources and that no quota counts, for
    instance example.com/fpga. Network devices such as rdma/hca are allowed without it. Jobs that
    request another device do not start in this pool. Default: none."""
    devices: GpuDevices | None = None
    """Set if the GPUs are devices of Dynamic Resource Allocation. Pods still request them as
    gpuResource. Needs the chart's dynamicResources.enabled. Unset: a device plugin offers
    gpuResource. Cannot be added or removed later."""
    topology_levels: Annotated[
        list[TopologyLevel] | None, Field(max_length=8, json_schema_extra=keyed_by("name"))
    ] = None
    """Levels of the network, broadest first, such as block, rack, clique."""
    capacity: PoolCapacity | None = None
    """Price of the nodes, and whether the cloud may reclaim them. Unset: OnDemand, with no known
    price."""
    share_weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Weight of one of these GPUs in fair shares, which add GPUs over all pools. Default: 1."""
    hardware: HardwareSpec | None = None
    """Hardware of the GPUs. Unset: the ranks detect it, and job memory is not checked before the
    start."""
    pod_profile: PodProfile | None = None
    """Additional settings of all pods in this pool, such as host folders, capabilities and sidecars
    for fast networks. Unset: no additions."""
    autoscaling: PoolAutoscaling | None = None
    """Requests for nodes from an autoscaler when jobs wait. Unset: no requests."""
    node_health: NodeHealthSpec | None = None
    """Reactions to evidence against nodes. Unset: the defaults of its fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # Same test as for partitions, because both become requests of a pod.
        Rule(
            rule="self.gpuResource.matches('^[^/]+/[^/]+$')"
            " && !self.gpuResource.matches('^([^/]*[.])?kubernetes[.]io/')",
            message="gpuResource must be a device resource named domain/name; for example"
            " nvidia.com/gpu",
            field_path=".gpuResource",
        ),
        Rule(
            rule="self.gpuResource == oldSelf.gpuResource",
            message="gpuResource may never change; create another GpuPool",
            field_path=".gpuResource",
        ),
        # The field may neither appear nor disappear. Its content has rules of its own.
        Rule(
            rule="has(self.partitions) == has(oldSelf.partitions)",
            message="partitions may never be added or removed, because quotas count parts with"
            " them; create another GpuPool",
            field_path=".partitions",
        ),
        # The largest rule: 32 names times 16 partitions, which the bounds keep within the budget.
        Rule(
            rule="!has(self.auxiliaryResources) || self.auxiliaryResources.all(name,"
            " name.matches('^[^/]+/[^/]+$') && !name.matches('^([^/]*[.])?kubernetes[.]io/')"
            " && name != self.gpuResource && (!has(self.partitions)"
            " || self.partitions.resources.all(each, each.resource != name)))",
            message="auxiliaryResources: name devices (domain/name) that are no GPUs of the pool:"
            " jobs ask for these by gpusPerNode, and the queue pays",
            field_path=".auxiliaryResources",
        ),
        Rule(
            rule="has(self.devices) == has(oldSelf.devices)",
            message="devices may never be added or removed, because running pods got their GPUs"
            " the other way; create another GpuPool",
            field_path=".devices",
        ),
        Rule(
            rule="!has(self.devices) || (!has(self.partitions) && !has(self.autoscaling))",
            message="devices: only whole GPUs of existing nodes are allocated; remove partitions"
            " and autoscaling",
            field_path=".devices",
        ),
        # A partition with the name of whole GPUs would be counted twice.
        Rule(
            rule="!has(self.partitions) || self.partitions.resources.all(each,"
            " each.resource != self.gpuResource)",
            message="partitions: gpuResource counts whole GPUs; remove it from the partitions",
            field_path=".partitions",
        ),
        Rule(
            rule="!has(self.partitions) || !has(self.autoscaling)",
            message="autoscaling requests whole GPUs; remove it, or the partitions",
            field_path=".autoscaling",
        ),
        # `exists_one` is true only if the label occurs once, so it finds duplicates. At most 64
        # steps.
        Rule(
            rule="!has(self.topologyLevels) || self.topologyLevels.all(one,"
            " self.topologyLevels.exists_one(other, other.nodeLabel == one.nodeLabel))",
            message="topologyLevels: two levels have the same nodeLabel; give each level its own"
            " label",
            field_path=".topologyLevels",
        ),
        # Without this number, nobody could compute how many nodes a job needs.
        Rule(
            rule="!has(self.autoscaling) || self.gpuResource in self.autoscaling.node.allocatable",
            message="autoscaling.node.allocatable must contain the number of GPUs of a new node;"
            " add gpuResource (nvidia.com/gpu if it is unset)",
            field_path=".autoscaling.node.allocatable",
        ),
        # Compares capacity.type with Karpenter's label in the selector.
        CAPACITY_AGREES,
    )


class StepPartStatus(ApiModel):
    """Error of the planner's prediction for one part of a step."""

    part: Annotated[str, Field(max_length=32)]
    """Part of the step: compute, tensor, context, expert, data, pipeline (waiting for messages of
    that axis), optimizer or rest."""
    percent: int
    """Measured time divided by predicted time, in percent. 100 is as predicted."""


class GpuPoolStatus(ApiModel):
    """Observed state of a GpuPool."""

    observed_generation: int | None = None
    """metadata.generation that this status describes."""
    conditions: Annotated[
        list[Condition] | None, Field(max_length=8, json_schema_extra=keyed_by("type"))
    ] = None
    """Conditions: Ready. If they apply: Overlapping (another pool selects the same nodes), Degraded
    or Stalled."""
    nodes: int | None = None
    """Number of nodes in the pool."""
    total_gpus: int | None = None
    """Number of GPUs that these nodes can allocate."""
    used_gpus: int | None = None
    """Number of GPUs held by pods, foreign pods included. In a pool with partitions, usedGpus and
    totalGpus count parts."""
    jobs: int | None = None
    """Number of jobs that hold GPUs of the pool."""
    step_time_percent: int | None = None
    """Step time of running jobs divided by the planner's prediction, median in percent. 100 is as
    predicted. Keeps the last known value. `drumline plan` uses it if you pass the pool."""
    step_parts: Annotated[
        list[StepPartStatus] | None, Field(max_length=8, json_schema_extra=keyed_by("part"))
    ] = None
    """stepTimePercent by part of a step. `drumline plan` corrects each predicted part with it."""
    node_health: Annotated[
        list[NodeHealthStatus] | None, Field(max_length=64, json_schema_extra=keyed_by("node"))
    ] = None
    """Nodes with evidence against them, and which of them are quarantined."""
    quarantined_nodes: int | None = None
    """Number of quarantined nodes. Unset: none."""
    autoscaling: NodeSupplyStatus | None = None
    """Results of requests to the autoscaler. Unset: no request was made."""
    interruptions: InterruptionsStatus | None = None
    """Interruptions of the pool's nodes by the cloud. Unset: not a spot pool."""
    # A printer column reads one path, so the two figures are joined here.
    gpus: Annotated[str | None, Field(max_length=32)] = None
    """`used/total`, for the printer column."""


class GpuPool(ApiModel):
    """Nodes with the same GPUs that one gang can span."""

    KIND: ClassVar[str] = "GpuPool"

    spec: GpuPoolSpec
    """Desired state of the pool."""
    status: Annotated[GpuPoolStatus | None, Field(json_schema_extra=WRITTEN_AS_ONE)] = None
    """Observed state. Set by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # Quotas and pods carry the name as a label value, which has at most 63 characters.
        name_rule(kind="GpuPool", longest=63, why="jobs and quotas name it in one label"),
    )
