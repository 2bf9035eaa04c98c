"""The fields that are read of each kind, and the facts they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from drumline.kube.pod_requests import pod_requests
from drumline.kube.quantity import amount
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from drumline_api.objects import builtin, storage
from drumline_api.objects.base import ObjectPart
from drumline_api.objects.custom import StoredCheckpointSpec, StoredTrainingJob
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_cli.doctor.facts import (
    ClaimFact,
    ClassFact,
    DevicePod,
    DeviceSlice,
    JobFact,
    Labels,
    MonitorFact,
    NamespaceFact,
    NodeClock,
    NodeFact,
    PoolFact,
    PriorityFact,
    PrometheusFact,
    QueueFact,
    SchemaFact,
)
from drumline_cli.formatting import moment
from drumline_contract import plain

# Finished jobs hold nothing, so no check needs them.
_OVER: Final = frozenset({"Succeeded", "Failed"})
_HALF_SECOND: Final = 0.5
S = TypeVar("S")


def node(raw: bytes) -> NodeFact:
    """Return a node with the resources that device plugins offer."""
    read = _decoded(builtin.Node, raw)
    return NodeFact(
        name=plain(read.metadata.name),
        labels=_labels(read.metadata.labels),
        allocatable=_devices(read.status.allocatable),
        capacity=_devices(read.status.capacity),
    )


def device_pod(raw: bytes) -> DevicePod | None:
    """Return a pod that holds devices, or None for all other pods."""
    read = _decoded(builtin.Pod, raw)
    # Names with a slash are device resources. cpu and memory have none.
    requests = {key: count for key, count in pod_requests(read.spec).items() if "/" in key}
    # Most Pods have no devices. Dropping them here keeps the facts small.
    if not requests:
        return None
    owners = read.metadata.owner_references or ()
    return DevicePod(
        namespace=plain(read.metadata.namespace),
        name=plain(read.metadata.name),
        node=plain(read.spec.node_name),
        scheduler=plain(read.spec.scheduler_name),
        ours="drumline.dev/job" in (read.metadata.labels or {}),
        # A DaemonSet's Pod belongs to its node, so it is not a competitor for GPUs.
        daemon=any(owner.kind == "DaemonSet" for owner in owners),
        requests=requests,
    )


def device_slice(raw: bytes) -> DeviceSlice | None:
    """Return a slice of the devices of a single node, or None for devices of several."""
    # Devices on a network, without a node, belong to several nodes.
    spec = _decoded(builtin.ResourceSlice, raw).spec
    return DeviceSlice(node=spec.node_name, driver=spec.driver) if spec.node_name else None


class _ManagedFields(ObjectPart, frozen=True):
    time: str = ""
    fields: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")


class _ClockMetadata(ObjectPart, frozen=True):
    name: str
    managed_fields: list[_ManagedFields] | None = None


class _ClockSpec(ObjectPart, frozen=True):
    renew_time: str | None = None


class _ClockLease(ObjectPart, frozen=True):
    metadata: _ClockMetadata
    spec: _ClockSpec = _ClockSpec()


def node_clock(raw: bytes) -> NodeClock | None:
    """Return a kubelet's clock by its Lease, or None if that does not say.

    The kubelet writes `renewTime` by its own clock, and the API server stamps the write in
    `managedFields` by its own, in whole seconds.
    """
    read = _decoded(_ClockLease, raw)
    renewed = moment(read.spec.renew_time)
    # A Lease may have several managers. Only the one that writes renewTime is the kubelet.
    stamps = [
        stamp
        for entry in read.metadata.managed_fields or ()
        if "f:renewTime" in (entry.fields or {}).get("f:spec", {})
        and (stamp := moment(entry.time)) is not None
    ]
    if renewed is None or not stamps:
        return None
    # The stamp is cut to a second, so half a second is added on average.
    stamped = max(stamps) + _HALF_SECOND
    return NodeClock(node=plain(read.metadata.name), ahead_seconds=renewed - stamped)


class _SpecFields(builtin.Identity, frozen=True):
    spec: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


def pool(raw: bytes) -> PoolFact:
    """Return a GpuPool.

    Raises:
        ApiError: its spec is not one of this program's.
    """
    # The spec is parsed strictly, because an unknown field is a finding.
    read = _decoded(_SpecFields, raw)
    return PoolFact(name=plain(read.metadata.name), spec=parse(GpuPoolSpec, read.spec, at="spec"))


def queue(raw: bytes) -> QueueFact:
    """Return a TrainingQueue.

    Raises:
        ApiError: its spec is not one of this program's.
    """
    read = _decoded(_SpecFields, raw)
    return QueueFact(
        name=plain(read.metadata.name), spec=parse(TrainingQueueSpec, read.spec, at="spec")
    )


def job(raw: bytes) -> JobFact | None:
    """Return a TrainingJob, or None for those that are over."""
    # The tolerant model reads jobs of older and newer versions.
    read = _decoded(StoredTrainingJob, raw)
    if read.status.phase in _OVER:
        return None
    return JobFact(
        namespace=plain(read.metadata.namespace),
        name=plain(read.metadata.name),
        nodes=read.spec.nodes,
        claim=_claim(read.spec.checkpoint),
        queue=plain(read.spec.queue),
        # A job with an assignment holds GPUs.
        pool=plain(read.status.assignment.gpu_pool) if read.status.assignment else "",
    )


def _claim(checkpoint: StoredCheckpointSpec | None) -> str | None:
    """Return the name of the checkpoints' claim. None: no checkpoints, or a bucket has them."""
    name = None if checkpoint is None else checkpoint.claim_name
    return None if name is None else plain(name)


def namespace(raw: bytes) -> NamespaceFact:
    """Return a namespace."""
    metadata = _decoded(builtin.Identity, raw).metadata
    return NamespaceFact(name=plain(metadata.name), labels=_labels(metadata.labels))


class _ClaimSpec(ObjectPart, frozen=True):
    access_modes: list[str] | None = None


class _ClaimStatus(ObjectPart, frozen=True):
    phase: str = ""


class _Claim(builtin.Identity, frozen=True):
    spec: _ClaimSpec
    status: _ClaimStatus = _ClaimStatus()


def claim(raw: bytes) -> ClaimFact:
    """Return a PersistentVolumeClaim."""
    read = _decoded(_Claim, raw)
    return ClaimFact(
        namespace=plain(read.metadata.namespace),
        name=plain(read.metadata.name),
        phase=read.status.phase,
        access_modes=frozenset(read.spec.access_modes or ()),
    )


def storage_class(raw: bytes) -> ClassFact:
    """Return a StorageClass."""
    read = _decoded(storage.StorageClass, raw)
    return ClassFact(name=plain(read.metadata.name), provisioner=plain(read.provisioner))


def priority(raw: bytes) -> PriorityFact:
    """Return a PriorityClass."""
    read = _decoded(builtin.PriorityClass, raw)
    return PriorityFact(
        name=plain(read.metadata.name),
        value=read.value,
        # `Never` means that Pods of this class do not preempt others.
        preempts=read.preemption_policy != "Never",
    )


def schema(raw: bytes) -> SchemaFact:
    """Return a CustomResourceDefinition: the fields of its stored version."""
    return schema_of(msgspec.json.decode(raw))


def schema_of(manifest: Mapping[str, Any]) -> SchemaFact:
    """Return the fields of a CustomResourceDefinition's manifest, list and map entries left out."""
    spec = manifest["spec"]
    # Exactly one version is stored. The API server requires it.
    (version,) = (version for version in spec["versions"] if version["storage"])
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    named = {part: properties[part] for part in ("spec", "status") if part in properties}
    return SchemaFact(kind=spec["names"]["kind"], fields=frozenset(_paths(named, at="")))


class _Selector(ObjectPart, frozen=True):
    match_labels: dict[str, str] | None = None


class _PrometheusSpec(ObjectPart, frozen=True):
    service_monitor_selector: _Selector | None = None
    pod_monitor_selector: _Selector | None = None
    rule_selector: _Selector | None = None


class _Prometheus(builtin.Identity, frozen=True):
    spec: _PrometheusSpec


def prometheus(raw: bytes) -> PrometheusFact:
    """Return a Prometheus and what it takes up.

    A nil selector takes up nothing, an empty one all.
    """
    read = _decoded(_Prometheus, raw)
    # The Prometheus operator has one selector per kind of object.
    chosen = {
        "ServiceMonitor": read.spec.service_monitor_selector,
        "PodMonitor": read.spec.pod_monitor_selector,
        "PrometheusRule": read.spec.rule_selector,
    }
    return PrometheusFact(
        namespace=plain(read.metadata.namespace),
        name=plain(read.metadata.name),
        selectors={
            # matchExpressions are not judged, so such a selector looks like an empty one.
            kind: None if selector is None else _labels(selector.match_labels)
            for kind, selector in chosen.items()
        },
    )


def monitor(raw: bytes, *, kind: str) -> MonitorFact:
    """Return a ServiceMonitor, PodMonitor or PrometheusRule."""
    metadata = _decoded(builtin.Identity, raw).metadata
    return MonitorFact(kind=kind, name=plain(metadata.name), labels=_labels(metadata.labels))


def _decoded(kind: type[S], raw: bytes) -> S:
    return msgspec.json.decode(raw, type=kind)


def _labels(labels: Mapping[str, str] | None) -> Labels:
    return {plain(key): plain(value) for key, value in (labels or {}).items()}


def _devices(resources: Mapping[str, str | int | float] | None) -> dict[str, int]:
    # Quantities of devices are whole numbers.
    return {key: amount(key, str(text)) for key, text in (resources or {}).items() if "/" in key}


def _paths(properties: Mapping[str, Any], *, at: str) -> Iterator[str]:
    for name, inner in properties.items():
        path = f"{at}{name}"
        yield path
        # Items of a list have fields of their own. The path omits the index.
        within = inner.get("items", inner)
        yield from _paths(within.get("properties", {}), at=f"{path}.")
