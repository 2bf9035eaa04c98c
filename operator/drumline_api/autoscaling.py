"""How a GpuPool gets more nodes while jobs wait for them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from drumline_api.base import (
    DISTINCT,
    ApiModel,
    LabelKey,
    LabelValue,
    Quantity,
    Rule,
    Timestamp,
    keyed_by,
)

BEST_EFFORT_ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
CHECK_CAPACITY = "check-capacity.autoscaling.x-k8s.io"


class NewNodeTaint(ApiModel):
    """A taint that new nodes keep. Not a startup taint: a node is used once these are gone."""

    key: LabelKey
    """The taint's key."""
    value: LabelValue | None = None
    """The taint's value; absent: empty."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """The taint's effect."""


class NewNode(ApiModel):
    """What a node is like that the autoscaler adds: jobs that would not fit it ask for none."""

    allocatable: Annotated[dict[LabelKey, Quantity], Field(min_length=1, max_length=16)]
    """What its pods can request, by resource, as in status.allocatable of a node; less what its
    DaemonSets take. A resource that is not named here counts as absent, but for 110 pods."""
    labels: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels it has besides those of nodeSelector, such as that of a topology level. Every new node
    has these, so a level that differs among them cannot be required by jobs that wait for nodes."""
    taints: Annotated[
        list[NewNodeTaint] | None, Field(max_length=16, json_schema_extra=keyed_by("key"))
    ] = None
    """Taints it has once it is in service. Jobs that do not tolerate them ask for none."""


class PoolAutoscaling(ApiModel):
    """Nodes that are asked for when jobs wait that their queues would let start."""

    mode: Literal["Placeholders", "ProvisioningRequest", "CapacityBuffer"] = "Placeholders"
    """How the autoscaler is asked. Placeholders: pods of the operator's own namespace that are
    never bound, one for each node that a waiting job would use. Karpenter and cluster-autoscaler
    need no setting for it. ProvisioningRequest: one object for all nodes of a job, which
    cluster-autoscaler grants as a whole or not at all. CapacityBuffer: room for so many pods, which
    Karpenter and cluster-autoscaler keep. The last two are alpha or beta there, must be served by
    the cluster, and allowed to the operator (chart: rbac.autoscalingModes). Default:
    Placeholders."""
    provisioning_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """provisioningClassName of ProvisioningRequests: a class of your cloud that adds nodes, such as
    queued-provisioning.gke.io. Absent: best-effort-atomic-scale-up.autoscaling.x-k8s.io."""
    max_nodes: Annotated[int, Field(ge=1, le=100_000)]
    """Most nodes of the pool, those that are there counted: for more nothing is asked."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 900
    """After so long without all nodes of a job what was asked for it is withdrawn as a whole, and
    the pool is to grow as far in this zone only after a pause. Default: 900."""
    zones: Annotated[
        list[Annotated[LabelValue, Field(min_length=1)]] | None,
        Field(min_length=1, max_length=16, json_schema_extra=DISTINCT),
    ] = None
    """Zones (topology.kubernetes.io/zone) in which new nodes are asked for: all those of a job in
    one, the first of these that has had no timeout lately. Absent: wherever the autoscaler puts
    them."""
    node: NewNode
    """What a new node is like."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.zones) || !has(self.node.labels)"
            " || !('topology.kubernetes.io/zone' in self.node.labels)",
            message="zones say in which zone new nodes are; remove the label"
            " topology.kubernetes.io/zone",
            field_path=".node.labels",
        ),
        Rule(
            rule="!has(self.provisioningClassName) || (self.mode == 'ProvisioningRequest' &&"
            f" self.provisioningClassName != '{CHECK_CAPACITY}')",
            message="provisioningClassName is for mode ProvisioningRequest and a class that adds"
            " nodes, which check-capacity does not; remove it",
            field_path=".provisioningClassName",
        ),
    )


class ZonePauseStatus(ApiModel):
    """A pause after nodes that did not come."""

    zone: Annotated[str, Field(max_length=63)]
    """Where they were asked for; empty: anywhere."""
    pool_nodes: Annotated[int, Field(ge=1)]
    """How many nodes the pool would have had with them: so many are not asked for again, fewer
    are."""
    until: Timestamp
    """When the pause is over; it is remembered, as the next one is twice as long."""
    timeouts: Annotated[int, Field(ge=1, le=1_000_000)]
    """How many timeouts there were since a job last started on new nodes."""
    message: Annotated[str, Field(max_length=256)] | None = None
    """What the autoscaler said last of the nodes that did not come. Absent: nothing."""


class NodeSupplyStatus(ApiModel):
    """How the autoscaler has answered."""

    start_seconds: Annotated[list[Annotated[int, Field(ge=0)]] | None, Field(max_length=20)] = None
    """Seconds from asking for nodes to the start of the job, of the last jobs that got theirs, the
    newest last. Expected starts of jobs that wait for nodes follow from them."""
    pauses: Annotated[
        list[ZonePauseStatus] | None, Field(max_length=16, json_schema_extra=keyed_by("zone"))
    ] = None
    """Where nodes did not come, by zone."""
