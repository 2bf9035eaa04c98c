"""Define how a GpuPool requests more nodes while jobs wait for them."""

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
    """A permanent taint of new nodes.

    Do not list startup taints: a node is used after they are removed.
    """

    key: LabelKey
    """Key of the taint."""
    value: LabelValue | None = None
    """Value of the taint. Unset: empty."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """Effect of the taint."""


class NewNode(ApiModel):
    """A node that the autoscaler adds. Jobs that do not fit on it request no nodes."""

    allocatable: Annotated[dict[LabelKey, Quantity], Field(min_length=1, max_length=16)]
    """Resources that pods can request, as in status.allocatable of a node, minus the requests of
    its DaemonSets. Resources that are not listed are treated as absent, except 110 pods."""
    labels: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels in addition to those of nodeSelector, such as the label of a topology level. All new
    nodes must have them. If new nodes differ in a level, jobs that wait for nodes cannot require
    that level."""
    taints: Annotated[
        list[NewNodeTaint] | None, Field(max_length=16, json_schema_extra=keyed_by("key"))
    ] = None
    """Taints that the node keeps in service. Jobs that do not tolerate them request no nodes."""


class PoolAutoscaling(ApiModel):
    """Node requests for jobs that wait for GPUs although their queues would let them start."""

    mode: Literal["Placeholders", "ProvisioningRequest", "CapacityBuffer"] = "Placeholders"
    """Method to request nodes. Placeholders: pods in the operator's namespace that are never bound,
    one per node that a pending job would use. Karpenter and cluster-autoscaler need no
    configuration for it. ProvisioningRequest: one object for all nodes of a job. cluster-autoscaler
    grants it as a whole or not at all. CapacityBuffer: capacity for a number of pods, which
    Karpenter and cluster-autoscaler keep free. ProvisioningRequest and CapacityBuffer are alpha or
    beta APIs. The cluster must serve them, and the operator needs permission (chart:
    rbac.autoscalingModes). Default: Placeholders."""
    provisioning_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """provisioningClassName of ProvisioningRequests: a class of your cloud that adds nodes, such as
    queued-provisioning.gke.io. Unset: best-effort-atomic-scale-up.autoscaling.x-k8s.io."""
    max_nodes: Annotated[int, Field(ge=1, le=100_000)]
    """Maximum number of nodes in the pool, including existing nodes. No nodes are requested beyond
    it."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 900
    """Seconds until a request is withdrawn as a whole if not all nodes of the job have arrived. The
    same pool size in this zone is requested again only after a pause. Default: 900."""
    zones: Annotated[
        list[Annotated[LabelValue, Field(min_length=1)]] | None,
        Field(min_length=1, max_length=16, json_schema_extra=DISTINCT),
    ] = None
    """Zones (topology.kubernetes.io/zone) in which nodes are requested. All nodes of a job are
    requested in one zone: the first one without a recent timeout. Unset: the autoscaler chooses the
    zone."""
    node: NewNode
    """Properties of a new node."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # Two sources of the zone could contradict each other, and no node would ever match.
        Rule(
            rule="!has(self.zones) || !has(self.node.labels)"
            " || !('topology.kubernetes.io/zone' in self.node.labels)",
            message="zones sets the zone of new nodes; remove the label"
            " topology.kubernetes.io/zone",
            field_path=".node.labels",
        ),
        # check-capacity only reports. It would leave the job waiting forever.
        Rule(
            rule="!has(self.provisioningClassName) || (self.mode == 'ProvisioningRequest' &&"
            f" self.provisioningClassName != '{CHECK_CAPACITY}')",
            message="provisioningClassName needs mode ProvisioningRequest and a class that adds"
            " nodes, which check-capacity does not; remove it",
            field_path=".provisioningClassName",
        ),
    )


class ZonePauseStatus(ApiModel):
    """A pause after nodes did not arrive."""

    zone: Annotated[str, Field(max_length=63)]
    """Zone in which the nodes were requested. Empty: any zone."""
    pool_nodes: Annotated[int, Field(ge=1)]
    """Size of the pool that the request would have led to, in nodes. Requests that reach this size
    are paused. Smaller requests are allowed."""
    until: Timestamp
    """End of the pause. It is stored because the next pause is twice as long."""
    timeouts: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of timeouts since a job last started on new nodes."""
    message: Annotated[str, Field(max_length=256)] | None = None
    """Last message of the autoscaler about the nodes that did not arrive. Unset: none."""


class NodeSupplyStatus(ApiModel):
    """Results of node requests to the autoscaler."""

    # The last 20 values are enough for a median and a 90th percentile.
    start_seconds: Annotated[list[Annotated[int, Field(ge=0)]] | None, Field(max_length=20)] = None
    """Seconds from node request to job start, for recent jobs. Newest last. Forecasts for jobs that
    wait for nodes use these values."""
    pauses: Annotated[
        list[ZonePauseStatus] | None, Field(max_length=16, json_schema_extra=keyed_by("zone"))
    ] = None
    """Pauses after nodes did not arrive, by zone."""
