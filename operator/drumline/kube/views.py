"""Views of objects in the caches: small frozen values, never a manifest.

They are msgspec structs that the garbage collector does not track, because 40,000 of them must not
lengthen its pauses. Two rules keep them small. Only labels and annotations that we use are kept
(see `codec`), and text that a tenant can write is bounded.

Amounts are integers: CPU in thousandths, everything else in whole units, as kube-scheduler counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import msgspec

from drumline_api.objects import builtin


class Key(NamedTuple):
    """Key of an object. `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    # No view below keeps a reference to its document. The raw bytes are freed after each event.
    name: str


class View(Protocol):
    """Properties of a view that an informer needs."""

    @property
    def namespace(self) -> str:
        """Return its namespace. Empty for cluster-scoped kinds."""
        ...

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def uid(self) -> str:
        """Return its uid, which a later object of the same name does not share."""
        ...

    @property
    def resource_version(self) -> str:
        """Return the version of the object that this view shows."""
        ...


class PodPhase(StrEnum):
    """A pod's phase, as the kubelet reports it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> PodPhase:
        # A pod of a phase that is not known has not ended: it holds its node.
        return cls.UNKNOWN if isinstance(value, str) else super()._missing_(value)


class ContainerView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """State of one container of a pod.

    Attributes:
        name: its name in the pod.
        ready: whether its readiness probe passes.
        is_sidecar: whether it is a native sidecar, which the kubelet always restarts.
        image_id: its image as the runtime names it. Empty before the image was pulled.
        waiting_reason: why it does not run yet (`ImagePullBackOff`), with `waiting_message`.
        exit_code: its exit code once this run ended, otherwise None.
        exit_reason: `Completed`, `Error`, `OOMKilled`, ... once it ended.
        termination_message: its termination message, bounded.
        finished_time: time of its end (RFC 3339). Empty before.
    """

    # Defaults describe a container that the kubelet has not reported on yet.
    name: str
    ready: bool = False
    is_sidecar: bool = False
    image_id: str = ""
    waiting_reason: str = ""
    waiting_message: str = ""
    exit_code: int | None = None
    exit_reason: str = ""
    termination_message: str = ""
    finished_time: str = ""


class ExpressionView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One condition on a node's labels."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class PlacementView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Node constraints of pods from their spec.

    Attributes:
        priority: value of their priority class, as the API server wrote it into a pod.
        priority_class: name of a template's class, which no API server has checked. Empty: the
            default. None for a pod.
        node_selector: labels that a node must have.
        affinity: required node affinity: all expressions of at least one term. Empty: any node.
        tolerations: taints that they tolerate.
    """

    # A mutable default is safe: msgspec copies an empty dict for each struct.
    priority: int = 0
    priority_class: str | None = None
    node_selector: dict[str, str] = {}
    affinity: tuple[tuple[ExpressionView, ...], ...] = ()
    tolerations: tuple[builtin.Toleration, ...] = ()


class GateView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that our scheduling gate holds.

    Attributes:
        created_time: When it was created (RFC 3339).
        is_last: Whether no other gate holds it.
        placement: Where it may run.
    """

    created_time: str
    is_last: bool
    placement: PlacementView


class PodView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pod.

    Attributes:
        owner_uid: The uid of its controller, empty if it has none.
        labels: Only of the `drumline.dev/` prefix.
        annotations: Only of the `drumline.dev/` prefix.
        node_name: The node it is bound to, empty while it is bound to none.
        phase: Its phase.
        pod_ip: Its address, empty until it has one.
        ready: Its Ready condition.
        reason: Why it failed as a whole (`Evicted`, `OutOfcpu`), with `message`.
        terminating: Whether its deletion was requested: its resources are still held.
        nominated_node: Where its scheduler keeps room for it while it is not bound.
        deletion_time: When the grace period ends (RFC 3339), empty while not terminating.
        grace_seconds: The whole grace period of a pod whose deletion was requested.
        finalizers: What holds the object of a pod whose deletion was requested.
        group: The group of pods that its scheduler places together, empty if it has none.
        claims: The PersistentVolumeClaims that it mounts, if it is bound or our gate holds it.
        disruption_reason: The reason of a true DisruptionTarget condition, else empty.
        requests: What it takes from its node, by resource name, as kube-scheduler counts.
        channel_claim: The name of its claim of a channel; empty: none was made yet.
        containers: Its containers' states.
        init_containers: Its init containers' states, sidecars among them.
        gate: Of a pod that the gate `drumline.dev/queue` holds back; None: it does not.
        deadline_seconds: It is ended when it has run that long; None: it has no limit.
        start_time: Of one with a limit: when its kubelet began with it (RFC 3339).
        is_static: True if its kubelet starts it from a file, and again after any deletion.
        unread: True if a part of it could not be read. Its requests may be higher.
    """

    # Identity first. The uid separates a pod from a later one with the same name.
    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str = ""
    labels: dict[str, str] = {}
    # Only our own labels, interned: a gang's pods share every text except the rank.
    annotations: dict[str, str] = {}
    # The binding is one-way: a bound pod never moves to another node.
    node_name: str = ""
    phase: PodPhase = PodPhase.PENDING
    pod_ip: str = ""
    ready: bool = False
    reason: str = ""
    message: str = ""
    terminating: bool = False
    nominated_node: str = ""
    deletion_time: str = ""
    grace_seconds: int = 0
    finalizers: tuple[str, ...] = ()
    disruption_reason: str = ""
    # The scheduler's sum is stored, not the containers: it is read far more often than it changes.
    requests: dict[str, int] = {}
    channel_claim: str = ""
    group: str = ""
    claims: tuple[str, ...] = ()
    containers: tuple[ContainerView, ...] = ()
    init_containers: tuple[ContainerView, ...] = ()
    gate: GateView | None = None
    deadline_seconds: int | None = None
    start_time: str = ""
    is_static: bool = False
    unread: bool = False

    @property
    def finished(self) -> bool:
        """Return whether it holds no resources of its node any more."""
        # kube-scheduler frees the requests in these two phases, even while the object still exists.
        return self.phase in {PodPhase.SUCCEEDED, PodPhase.FAILED}

    @property
    def is_accepted(self) -> bool:
        """Return whether a kubelet has accepted it. Users cannot write a pod's status."""
        # A pod that pulls its images is Pending, but its kubelet already reports its containers.
        return self.phase is PodPhase.RUNNING or bool(self.containers or self.init_containers)


class ConditionView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One condition of a node; its heartbeats are left out.

    Attributes:
        since_time: When its status last changed (RFC 3339), empty where it is not set.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since_time: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node.

    Attributes:
        labels: All of them: topology levels and pool selectors may name any.
        annotations: The annotations of the `drumline.dev/` prefix, and the announcement of its end.
        taints: What a pod must tolerate.
        conditions: The conditions that report a fault, by the convention of their names.
        unschedulable: Whether it is cordoned.
        allocatable: What pods may take of it, by resource name.
        ready: Its Ready condition.
        terminating: Whether the Node object is being deleted.
        creation_time: RFC 3339.
        unread: True if a part of it could not be read.
    """

    name: str
    uid: str
    resource_version: str
    # Cluster-scoped kinds have the field too, because `Key` and `View` are the same for all.
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[builtin.Taint, ...] = ()
    conditions: tuple[ConditionView, ...] = ()
    unschedulable: bool = False
    # Allocatable, not capacity: the kubelet subtracts what it reserves for the system.
    allocatable: dict[str, int] = {}
    ready: bool = False
    terminating: bool = False
    creation_time: str = ""
    unread: bool = False


class NamespaceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One namespace.

    Attributes:
        labels: All of them: queues may select by any.
        terminating: Whether it is being deleted: nothing can be created there.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    labels: dict[str, str] = {}
    terminating: bool = False


class PriorityClassView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One PriorityClass.

    Attributes:
        preempts: Whether its preemptionPolicy allows preemption.
    """

    name: str
    uid: str
    resource_version: str
    value: int
    namespace: str = ""
    global_default: bool = False
    # `preemptionPolicy: Never` lets a pod go first in the queue without evicting others.
    preempts: bool = True


class StorageClassView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One StorageClass.

    Attributes:
        provisioner: What makes its volumes.
        binding_mode: `Immediate` or `WaitForFirstConsumer`.
        topologies: Where it provisions: all expressions of at least one term; empty: anywhere.
        is_default: True if claims that name no class get this one.
        creation_time: Time of its creation (RFC 3339). The newest default class counts.
    """

    name: str
    uid: str = ""
    resource_version: str = ""
    namespace: str = ""
    provisioner: str = ""
    # WaitForFirstConsumer volumes follow the pod. Immediate volumes pin it before it is placed.
    binding_mode: str = "Immediate"
    topologies: tuple[tuple[ExpressionView, ...], ...] = ()
    is_default: bool = False
    creation_time: str = ""


class VolumeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One PersistentVolume.

    Attributes:
        affinity: The nodes that can mount it: all expressions of at least one term; empty: any. The
            key `metadata.name` means the node's name.
        driver: The CSI driver that attaches it, empty for others.
        handle: Its identity at the driver.
        unattached: True if several nodes may mount it with any access mode, as with NFS.
        unread: True if a part of it could not be read.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    affinity: tuple[tuple[ExpressionView, ...], ...] = ()
    driver: str = ""
    handle: str = ""
    unattached: bool = False
    unread: bool = False


class CsiNodeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The CSI drivers of one node.

    Attributes:
        limits: The drivers with a limit, and the number of volumes that they can attach there.
        topology: The drivers, and the labels that say where the node reaches their volumes.
    """

    name: str
    uid: str = ""
    resource_version: str = ""
    namespace: str = ""
    limits: tuple[tuple[str, int], ...] = ()
    topology: tuple[tuple[str, tuple[str, ...]], ...] = ()


class CsiDriverView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One CSIDriver.

    Attributes:
        attaches: True if its volumes are attached to a node before they are mounted.
        serves_pods: True if it makes volumes of a single pod (inline volumes).
    """

    name: str
    uid: str = ""
    resource_version: str = ""
    namespace: str = ""
    attaches: bool = True
    serves_pods: bool = False


class Sharing(StrEnum):
    """Pods that may use a claim at the same time."""

    ANY = "Any"
    ONE_NODE = "OneNode"
    """ReadWriteOnce: all pods of one node."""
    ONE_POD = "OnePod"
    """ReadWriteOncePod."""


class ClaimView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One PersistentVolumeClaim.

    Attributes:
        volume: The name of its volume, empty while it is not bound.
        storage_class: The name of its class, empty where it has none.
        names_class: False if it gets the cluster's default class.
        bound: True if its volume exists and can be mounted.
        lost: True if its volume is gone.
        deleting: True if it is being deleted. A kubelet starts no pod that uses it.
        selected_node: Node for which its volume is provisioned, empty if it is bound or waits.
        sharing: The pods that may use it at the same time, by its access modes.
        is_block: True if its volume has no file system. A kubelet starts no pod that mounts it.
        unread: True if a part of it could not be read.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    volume: str = ""
    storage_class: str = ""
    names_class: bool = True
    bound: bool = True
    lost: bool = False
    deleting: bool = False
    selected_node: str = ""
    sharing: Sharing = Sharing.ANY
    is_block: bool = False
    unread: bool = False


class RuntimeClassView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One RuntimeClass.

    Attributes:
        overhead: Amounts that each pod takes in addition, by resource; CPU in thousandths.
        node_selector: Labels of the nodes that have the runtime.
        tolerations: Taints that the pods of the class ignore.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    overhead: tuple[tuple[str, int], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[builtin.Toleration, ...] = ()


class EventView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One Event.

    Attributes:
        reason: CamelCase.
        message: The sentence, bounded.
        time: When it happened last (RFC 3339), empty where it is not set.
        warning: Whether its type is Warning.
    """

    reason: str
    message: str = ""
    time: str = ""
    warning: bool = False


class TrainingJobView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One TrainingJob: its metadata, and spec and status as JSON text.

    There are ten thousands of them, and each is read once a change: as text they take a fifth of
    what they take decoded. `codec.spec_of` and `codec.status_of` decode.

    Attributes:
        generation: Raised by the server whenever the spec changes.
        creation_time: RFC 3339.
        deletion_time: RFC 3339, empty while it is not deleted.
        spec_json: An object; equal specs are one string.
        dropped_overrides_bytes: Length of `spec.trainer.overrides` where they are too long to be
            kept, else 0.
        status_json: An object.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int = 0
    creation_time: str = ""
    deletion_time: str = ""
    # Text, not bytes: only `str` can be interned, and sweeps repeat their spec.
    spec_json: str = "{}"
    dropped_overrides_bytes: int = 0
    # A status is unique to its job, so interning it would only fill the table.
    status_json: bytes = b"{}"


class ObjectView(msgspec.Struct, frozen=True, kw_only=True):
    """One object of ours: its metadata, and spec and status as decoded JSON for the API's models.

    Attributes:
        generation: Raised by the server whenever the spec changes.
        creation_time: RFC 3339.
        deletion_time: RFC 3339, empty while it is not deleted.
        labels: Only of the `drumline.dev/` prefix.
        annotations: Only of the `drumline.dev/` prefix.
        spec: As stored; read-only by convention.
        status: As stored; read-only by convention.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int = 0
    creation_time: str = ""
    deletion_time: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    # Decoded JSON holds references, so this struct stays visible to the garbage collector.
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


def key_of(view: View) -> Key:
    """Return the key of this view's object."""
    return Key(view.namespace, view.name)
