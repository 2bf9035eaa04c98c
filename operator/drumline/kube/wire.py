"""The fields Drumline reads, as the API server spells them. Everything else is skipped unparsed.

A field that Go may write as null is optional here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from drumline.kube.views import PodPhase


class _Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class OwnerReference(_Wire, frozen=True, gc=False):
    """One owner."""

    uid: str
    controller: bool | None = None
    kind: str = ""


class Metadata(_Wire, frozen=True, gc=False):
    """What every object has."""

    name: str
    uid: str = ""
    resource_version: str = ""
    namespace: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class Condition(_Wire, frozen=True, gc=False):
    """One condition."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


Quantities = dict[str, str | int]
"""By resource; as integers in templates of JobSets, which are stored as they were written."""


class ResourceRequirements(_Wire, frozen=True, gc=False):
    """What a container, or a pod as a whole, asks for."""

    requests: Quantities | None = None
    limits: Quantities | None = None


_NOTHING_ASKED = ResourceRequirements()


class Container(_Wire, frozen=True, gc=False):
    """One container of a pod's spec."""

    name: str = ""
    resources: ResourceRequirements = _NOTHING_ASKED
    restart_policy: str = ""


class SchedulingGate(_Wire, frozen=True, gc=False):
    """What keeps a pod from being scheduled."""

    name: str = ""


class Toleration(_Wire, frozen=True, gc=False):
    """One toleration."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodNodeExpression(_Wire, frozen=True, gc=False):
    """One requirement of node affinity."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class PodNodeTerm(_Wire, frozen=True, gc=False):
    """One term of node affinity; `matchFields` name single nodes and are not read."""

    match_expressions: list[PodNodeExpression] | None = None


class PodNodeTerms(_Wire, frozen=True, gc=False):
    """Required node affinity."""

    node_selector_terms: list[PodNodeTerm] | None = None


class PodNodeAffinity(_Wire, frozen=True, gc=False):
    """Node affinity."""

    required: PodNodeTerms | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Wire, frozen=True, gc=False):
    """A pod's affinity."""

    node_affinity: PodNodeAffinity | None = None


class PodClaim(_Wire, frozen=True, gc=False):
    """A claim of a pod's."""

    name: str


class PodSpec(_Wire, frozen=True, gc=False):
    """A pod's spec. What is raw is decoded only of pods that wait for a queue."""

    containers: list[Container] = []
    init_containers: list[Container] | None = None
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None
    resource_claims: list[PodClaim] | None = None
    node_name: str = ""
    scheduling_gates: list[SchedulingGate] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None
    node_selector: msgspec.Raw = msgspec.Raw(b"null")
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    tolerations: msgspec.Raw = msgspec.Raw(b"null")


class Waiting(_Wire, frozen=True, gc=False):
    """Why a container does not run."""

    reason: str = ""
    message: str = ""


class Terminated(_Wire, frozen=True, gc=False):
    """How a container ended."""

    exit_code: int
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(_Wire, frozen=True, gc=False):
    """One of the states; a running container sets none of these."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


_RUNNING = ContainerState()


class ContainerStatus(_Wire, frozen=True, gc=False):
    """One container as the kubelet reports it."""

    name: str
    ready: bool = False
    image_id: str = msgspec.field(default="", name="imageID")
    state: ContainerState = _RUNNING


class PodClaimStatus(_Wire, frozen=True, gc=False):
    """Which claim was made for a pod from a template."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(_Wire, frozen=True, gc=False):
    """A pod's status."""

    phase: PodPhase = PodPhase.PENDING
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    start_time: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaimStatus] | None = None


class TemplateOfPods(_Wire, frozen=True, gc=False):
    """What a workload makes pods from."""

    spec: PodSpec


class BatchJobSpec(_Wire, frozen=True, gc=False):
    """A Job's spec."""

    template: TemplateOfPods
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    suspend: bool | None = None


class ReplicatedJobStatus(_Wire, frozen=True, gc=False):
    """What has become of the Jobs of one kind in a JobSet."""

    name: str
    succeeded: int | None = None


class BatchJobStatus(_Wire, frozen=True, gc=False):
    """A Job's status, or a JobSet's."""

    conditions: list[Condition] | None = None
    start_time: str | None = None
    """Of a Job: when it was last resumed."""
    succeeded: int | None = None
    """Pods of a Job."""
    failed_indexes: str | None = None
    """Of an Indexed Job: those that are tried no more."""
    replicated_jobs_status: list[ReplicatedJobStatus] | None = None
    """Of a JobSet."""


_UNSEEN = BatchJobStatus()


class BatchJob(_Wire, frozen=True, gc=False):
    """A Job."""

    metadata: Metadata
    spec: BatchJobSpec
    status: BatchJobStatus = _UNSEEN


class JobTemplate(_Wire, frozen=True, gc=False):
    """What a JobSet makes Jobs from."""

    spec: BatchJobSpec


class ReplicatedJob(_Wire, frozen=True, gc=False):
    """Equal Jobs of a JobSet."""

    name: str
    template: JobTemplate
    replicas: int | None = None


class JobSetSpec(_Wire, frozen=True, gc=False):
    """A JobSet's spec."""

    replicated_jobs: list[ReplicatedJob] = []
    suspend: bool | None = None


class JobSet(_Wire, frozen=True, gc=False):
    """A JobSet."""

    metadata: Metadata
    spec: JobSetSpec
    status: BatchJobStatus = _UNSEEN


_NEW = PodStatus()


class Pod(_Wire, frozen=True, gc=False):
    """A pod."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = _NEW


class Taint(_Wire, frozen=True, gc=False):
    """One taint."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(_Wire, frozen=True, gc=False):
    """A node's spec."""

    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeStatus(_Wire, frozen=True, gc=False):
    """A node's status."""

    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


_PLAIN = NodeSpec()
_SILENT = NodeStatus()


class Node(_Wire, frozen=True, gc=False):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = _PLAIN
    status: NodeStatus = _SILENT


class Namespace(_Wire, frozen=True, gc=False):
    """A Namespace."""

    metadata: Metadata


class PriorityClass(_Wire, frozen=True, gc=False):
    """A PriorityClass."""

    metadata: Metadata
    value: int
    global_default: bool = False


class StorageClass(_Wire, frozen=True, gc=False):
    """A StorageClass."""

    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str | None = None


class EventSeries(_Wire, frozen=True, gc=False):
    """How often something happened, as newer components count it."""

    last_observed_time: str | None = None


class StoredEvent(_Wire, frozen=True, gc=False):
    """An Event of events.k8s.io; the kubelet still writes the deprecated times."""

    reason: str = ""
    note: str = ""
    type: str = ""
    event_time: str | None = None
    deprecated_last_timestamp: str | None = None
    series: EventSeries | None = None


class Custom(_Wire, frozen=True):
    """Any object, its spec and status unread."""

    metadata: Metadata
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class TrainingJobDocument(_Wire, frozen=True):
    """A TrainingJob, the fields of its spec and its status undecoded."""

    metadata: Metadata
    spec: dict[str, msgspec.Raw] | None = None
    status: msgspec.Raw = msgspec.Raw(b"{}")


class Identity(_Wire, frozen=True, gc=False):
    """Any object, its metadata alone."""

    metadata: Metadata
