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


class ResourceRequirements(_Wire, frozen=True, gc=False):
    """What a container, or a pod as a whole, asks for."""

    requests: dict[str, str] | None = None


_NOTHING_ASKED = ResourceRequirements()


class Container(_Wire, frozen=True, gc=False):
    """One container of a pod's spec."""

    name: str = ""
    resources: ResourceRequirements = _NOTHING_ASKED
    restart_policy: str = ""


class PodSpec(_Wire, frozen=True, gc=False):
    """A pod's spec."""

    containers: list[Container] = []
    init_containers: list[Container] | None = None
    overhead: dict[str, str] | None = None
    resources: ResourceRequirements | None = None
    node_name: str = ""


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


class PodStatus(_Wire, frozen=True, gc=False):
    """A pod's status."""

    phase: PodPhase = PodPhase.PENDING
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


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


class Version(_Wire, frozen=True, gc=False):
    """The metadata of a bookmark."""

    resource_version: str


class Bookmark(_Wire, frozen=True, gc=False):
    """How far a watch has come."""

    metadata: Version


class WatchLine(_Wire, frozen=True, gc=False):
    """One line of a watch; the object waits for the decoder its type asks for."""

    type: str
    object: msgspec.Raw
