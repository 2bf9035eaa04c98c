"""Declare the fields that are read of other kinds. This is the only declaration of their fields.

Every other field is skipped unparsed. A field that Go may write as null is optional here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import structs

from drumline_api.objects.base import Metadata, ObjectMetadata, ObjectPart

# Kinds use different words for the same state, so one set serves all of them.
ENDS: Final = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Condition types of a workload that has ended."""


class Condition(ObjectPart, frozen=True):
    """One condition."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


Quantities = dict[str, str | int | float]
"""Quantities by resource. Templates of JobSets and manifests may contain numbers, because they are
stored as written."""


class ResourceRequirements(ObjectPart, frozen=True):
    """The resources that a container or a pod requests."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(ObjectPart, frozen=True):
    """One container of a pod's spec."""

    # The name joins specs and statuses of containers.
    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""


class SchedulingGate(ObjectPart, frozen=True):
    """A scheduling gate: the pod is not scheduled while it has one."""

    name: str = ""


class Toleration(ObjectPart, frozen=True):
    """One toleration."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


NODE_NAME: Final = "metadata.name"
"""The only field of a node that Kubernetes compares."""
_LABEL_OF_NO_NODE: Final = "metadata.name/label"


class PodNodeExpression(ObjectPart, frozen=True):
    """One requirement of node affinity."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class PodNodeTerm(ObjectPart, frozen=True):
    """One term of node affinity; `matchFields` compares the node's name."""

    # Labels and fields are separate lists in the API, and both must match.
    match_expressions: list[PodNodeExpression] | None = None
    match_fields: list[PodNodeExpression] | None = None

    def conditions(self) -> tuple[PodNodeExpression, ...]:
        """Return the conditions of both lists. The key `metadata.name` is the node's name.

        An expression with this key is about a label of that name, which no node has.
        """
        labels = (
            structs.replace(each, key=_LABEL_OF_NO_NODE) if each.key == NODE_NAME else each
            for each in self.match_expressions or ()
        )
        return *labels, *(self.match_fields or ())


class PodNodeTerms(ObjectPart, frozen=True):
    """Required node affinity."""

    node_selector_terms: list[PodNodeTerm] | None = None


class PodNodeAffinity(ObjectPart, frozen=True):
    """Node affinity."""

    # The name in the API is too long for code, so the field has a short name here.
    required: PodNodeTerms | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ObjectPart, frozen=True):
    """A pod's affinity."""

    node_affinity: PodNodeAffinity | None = None


class VolumeClaim(ObjectPart, frozen=True):
    """The PersistentVolumeClaim of a pod's volume."""

    claim_name: str = ""


class Ephemeral(ObjectPart, frozen=True):
    """A volume whose claim is made for the pod; nothing of it is read."""


class PodVolume(ObjectPart, frozen=True):
    """A volume of a pod, as far as it is a PersistentVolumeClaim."""

    name: str = ""
    persistent_volume_claim: VolumeClaim | None = None
    ephemeral: Ephemeral | None = None


class SchedulingGroup(ObjectPart, frozen=True):
    """The PodGroup of a pod (scheduling.k8s.io)."""

    pod_group_name: str | None = None


class WorkloadReference(ObjectPart, frozen=True):
    """The group of a pod in a Workload, as Kubernetes 1.35 has it."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str | None = None


class PodClaim(ObjectPart, frozen=True):
    """A resource claim of a pod."""

    name: str


class PodSpec(ObjectPart, frozen=True):
    """A pod's spec."""

    containers: list[Container] = msgspec.field(default_factory=list[Container])
    init_containers: list[Container] | None = None
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None
    resource_claims: list[PodClaim] | None = None
    node_name: str = ""
    scheduling_gates: list[SchedulingGate] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None
    scheduler_name: str = ""


class PlacedPodSpec(PodSpec, frozen=True):
    """A pod's spec, with the undecoded fields that are read only for pods that wait for a queue.

    A raw field keeps the whole document in memory.
    """

    # Raw fields are decoded only for pods of a queue, which are a small part of all pods.
    node_selector: msgspec.Raw = msgspec.Raw(b"null")
    volumes: msgspec.Raw = msgspec.Raw(b"null")
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    tolerations: msgspec.Raw = msgspec.Raw(b"null")


class Waiting(ObjectPart, frozen=True):
    """Reason that a container does not run."""

    reason: str = ""
    message: str = ""


class Terminated(ObjectPart, frozen=True):
    """Result of a container that has ended."""

    # Required: a terminated state always has an exit code.
    exit_code: int
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(ObjectPart, frozen=True):
    """One of the states; a running container sets none of these."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(ObjectPart, frozen=True):
    """One container as the kubelet reports it."""

    name: str
    ready: bool = False
    # The camelCase rule gives `imageId`, and the API has `imageID`.
    image_id: str = msgspec.field(default="", name="imageID")
    state: ContainerState = ContainerState()
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None


class PodClaimStatus(ObjectPart, frozen=True):
    """Claim that was created for a pod from a template."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(ObjectPart, frozen=True):
    """A pod's status."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    # An exception of the API's spelling, as above.
    pod_ip: str = msgspec.field(default="", name="podIP")
    start_time: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaimStatus] | None = None
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None


class TemplateOfPods(ObjectPart, frozen=True):
    """The template of a workload's pods."""

    spec: PlacedPodSpec


class BatchJobSpec(ObjectPart, frozen=True):
    """A Job's spec."""

    template: TemplateOfPods
    # Null and absent both mean 1 here, and the reader applies the default.
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    suspend: bool | None = None


class ReplicatedJobStatus(ObjectPart, frozen=True):
    """The counts of Jobs of one replicated Job in a JobSet."""

    name: str
    succeeded: int | None = None


class WorkloadStatus(ObjectPart, frozen=True):
    """Status of a Job or a similar workload."""

    conditions: list[Condition] | None = None
    start_time: str | None = None
    """For a Job: time at which it was last resumed."""
    succeeded: int | None = None
    """Number of succeeded pods of a Job."""
    failed_indexes: str | None = None
    """For an Indexed Job: indexes that are not retried."""
    replicated_jobs_status: list[ReplicatedJobStatus] | None = None
    """For a JobSet."""
    job_deployment_status: str = ""
    """For a RayJob."""


def has_ended(conditions: Iterable[Condition] | None) -> bool:
    """Return whether one of these conditions reports that a workload has ended."""
    # A condition with status False is history, for example after a suspended Job resumed.
    return any(each.type in ENDS and each.status == "True" for each in conditions or ())


class BatchJob(ObjectPart, frozen=True):
    """A Job."""

    metadata: Metadata
    spec: BatchJobSpec
    status: WorkloadStatus = WorkloadStatus()


class JobTemplate(ObjectPart, frozen=True):
    """A replicated Job of a JobSet: the template of its Jobs."""

    spec: BatchJobSpec


class ReplicatedJob(ObjectPart, frozen=True):
    """Identical Jobs of a JobSet."""

    name: str
    template: JobTemplate
    replicas: int | None = None


class JobSetSpec(ObjectPart, frozen=True):
    """A JobSet's spec."""

    replicated_jobs: list[ReplicatedJob] = msgspec.field(default_factory=list[ReplicatedJob])
    suspend: bool | None = None


class JobSet(ObjectPart, frozen=True):
    """A JobSet."""

    metadata: Metadata
    spec: JobSetSpec
    status: WorkloadStatus = WorkloadStatus()


class Pod(ObjectPart, frozen=True):
    """A pod."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()


class PodState(ObjectPart, frozen=True):
    """A pod, with only its metadata and status."""

    metadata: Metadata
    status: PodStatus = PodStatus()


class PlacedPod(Pod, frozen=True):
    """A pod, with the fields that restrict its nodes."""

    spec: PlacedPodSpec


class Taint(ObjectPart, frozen=True):
    """One taint."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(ObjectPart, frozen=True):
    """A node's spec."""

    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeStatus(ObjectPart, frozen=True):
    """A node's status."""

    allocatable: Quantities | None = None
    capacity: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class Node(ObjectPart, frozen=True):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PriorityClass(ObjectPart, frozen=True):
    """A PriorityClass."""

    metadata: Metadata
    value: int
    global_default: bool = False
    preemption_policy: str | None = None


class LabelRequirement(ObjectPart, frozen=True):
    """One condition of a label selector."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(ObjectPart, frozen=True):
    """Conditions on labels: all of them."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelRequirement] | None = None

    def __str__(self) -> str:
        """Return the syntax of a query: `app=a,tier in (x,y),!old`. '' selects everything."""
        texts = [f"{key}={value}" for key, value in (self.match_labels or {}).items()]
        for each in self.match_expressions or ():
            match each.operator:
                case "Exists":
                    texts.append(each.key)
                case "DoesNotExist":
                    texts.append(f"!{each.key}")
                case _:
                    values = ",".join(each.values or ())
                    texts.append(f"{each.key} {each.operator.lower()} ({values})")
        return ",".join(texts)


class DisruptionBudgetSpec(ObjectPart, frozen=True):
    """A PodDisruptionBudget's spec."""

    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class DisruptionBudgetStatus(ObjectPart, frozen=True):
    """A PodDisruptionBudget's status."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


class DisruptionBudget(ObjectPart, frozen=True):
    """A PodDisruptionBudget."""

    metadata: Metadata
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


class ScopeRequirement(ObjectPart, frozen=True):
    """One condition on the pods that a ResourceQuota counts."""

    scope_name: str
    operator: str = "Exists"
    values: list[str] | None = None


class ScopeSelector(ObjectPart, frozen=True):
    """The conditions on the pods that a ResourceQuota counts: all of them."""

    match_expressions: list[ScopeRequirement] | None = None


class ResourceQuotaSpec(ObjectPart, frozen=True):
    """A ResourceQuota's spec."""

    hard: Quantities | None = None
    # Scopes and the selector must all match, so both are read.
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(ObjectPart, frozen=True):
    """A ResourceQuota's status."""

    hard: Quantities | None = None
    used: Quantities | None = None


class ResourceQuota(ObjectPart, frozen=True):
    """A ResourceQuota."""

    metadata: Metadata
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class LimitRangeItem(ObjectPart, frozen=True):
    """The bounds of a LimitRange on objects of one type."""

    type: str = ""
    min: Quantities | None = None
    max: Quantities | None = None


class LimitRangeSpec(ObjectPart, frozen=True):
    """A LimitRange's spec."""

    limits: list[LimitRangeItem] | None = None


class LimitRange(ObjectPart, frozen=True):
    """A LimitRange."""

    metadata: Metadata
    spec: LimitRangeSpec = LimitRangeSpec()


class NamespaceStatus(ObjectPart, frozen=True):
    """A Namespace's status."""

    phase: str | None = None


class Namespace(ObjectPart, frozen=True):
    """A Namespace."""

    metadata: Metadata
    status: NamespaceStatus = NamespaceStatus()


class RuntimeClassOverhead(ObjectPart, frozen=True):
    """The amounts that each pod of a RuntimeClass takes in addition."""

    pod_fixed: Quantities | None = None


class RuntimeClassScheduling(ObjectPart, frozen=True):
    """The nodes that have the runtime."""

    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class RuntimeClass(ObjectPart, frozen=True):
    """A RuntimeClass."""

    metadata: Metadata
    overhead: RuntimeClassOverhead | None = None
    scheduling: RuntimeClassScheduling | None = None


class EventSeries(ObjectPart, frozen=True):
    """Number of occurrences, as newer components count them."""

    count: int = 1
    last_observed_time: str | None = None


class EventSubject(ObjectPart, frozen=True):
    """The object that an Event is about."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class StoredEvent(ObjectPart, frozen=True):
    """An Event of events.k8s.io/v1 or of v1, with the fields of both versions."""

    metadata: ObjectMetadata
    reason: str | None = None
    type: str | None = None
    note: str | None = None
    message: str | None = None
    regarding: EventSubject | None = None
    involved_object: EventSubject | None = None
    series: EventSeries | None = None
    count: int | None = None
    deprecated_count: int | None = None
    event_time: str | None = None
    last_timestamp: str | None = None
    deprecated_last_timestamp: str | None = None


class Device(ObjectPart, frozen=True):
    """A device, with only its name."""

    name: str


class ResourceSliceSpec(ObjectPart, frozen=True):
    """The devices that a ResourceSlice lists, and their driver."""

    driver: str
    node_name: str | None = None
    devices: tuple[Device, ...] | None = None


class ResourceSlice(ObjectPart, frozen=True):
    """A ResourceSlice: devices of Dynamic Resource Allocation."""

    metadata: ObjectMetadata
    spec: ResourceSliceSpec


class Identity(ObjectPart, frozen=True):
    """Any object, with only its metadata."""

    metadata: Metadata
