"""Decode the API server's JSON to views. No other module knows the names of stored fields.

msgspec reads only the fields named here and skips the others unparsed. A pod takes about 10 us, and
no part of its manifest is kept. Every decoder raises only `Undecodable`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from drumline.kube.nesting import flattened
from drumline.kube.placement import claims_of, gate_of, pod_group_of
from drumline.kube.pod_requests import bounded_requests, channel_claim, with_default_requests
from drumline.kube.quantity import amount, is_quantity
from drumline.kube.readable_parts import readable_parts
from drumline.kube.views import (
    ConditionView,
    ContainerView,
    EventView,
    Key,
    NamespaceView,
    NodeView,
    ObjectView,
    PodPhase,
    PodView,
    PriorityClassView,
    RuntimeClassView,
    TrainingJobView,
)
from drumline_api.base import (
    ANNOTATION_ADMITTED,
    ANNOTATION_NODE,
    ANNOTATION_NODE_DEMAND,
    ANNOTATION_POD_GROUP_SIZE,
    LABEL_GANG_NETWORK,
    LABEL_GENERATION,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_KEPT_NODE,
    LABEL_NODE_DEMAND,
    LABEL_NODE_DEMAND_KIND,
    LABEL_NODES,
    LABEL_POD_GROUP,
    LABEL_PROTECTED,
    LABEL_QUEUE,
    LABEL_ROLE,
    LABEL_WORKLOAD,
    LABEL_WORKLOAD_PART,
)
from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata, ObjectPart, OwnerReference
from drumline_api.overrides import MAX_BYTES, Overrides
from drumline_contract import plain, plain_lines

# A tenant controls the texts below. Each bound keeps one object from filling the memory of 40,000.
OUR_PREFIX: Final = "drumline.dev/"
# The kubelet cuts termination messages at 4,096 bytes. A virtual kubelet may not.
MAX_TERMINATION_CHARS: Final = 4096
_MAX_TEXT_CHARS: Final = 1024
MAX_POD_TEXT_CHARS: Final = 4096
# A name has at most 255 characters, a tag 128 and a digest 71.
_MAX_IMAGE_CHARS: Final = 640
_MOST_RUNNING: Final = 1024
_MAX_CONDITION_CHARS: Final = 256
_MAX_FINALIZERS: Final = 3
_POD_TEXTS: Final = frozenset(
    {
        *(LABEL_JOB, LABEL_JOB_UID, LABEL_INDEX, LABEL_GENERATION, LABEL_NODES, LABEL_PROTECTED),
        *(LABEL_GANG_NETWORK, LABEL_ROLE, LABEL_QUEUE, LABEL_POD_GROUP, LABEL_WORKLOAD),
        *(LABEL_WORKLOAD_PART, LABEL_NODE_DEMAND, LABEL_KEPT_NODE, LABEL_NODE_DEMAND_KIND),
        *(ANNOTATION_POD_GROUP_SIZE, ANNOTATION_ADMITTED, ANNOTATION_NODE, ANNOTATION_NODE_DEMAND),
    }
)
"""Labels and annotations of pods that are kept. A tenant may write any others with our prefix."""
# Karpenter writes it on a node whose claim has a termination grace period.
_END_OF_NODE: Final = "karpenter.sh/nodeclaim-termination-timestamp"
_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the API object of a static pod."""
T = TypeVar("T")


class Undecodable(ValueError):  # noqa: N818 - read as an adjective
    """A document that does not match its kind."""


def decoded(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw) -> T:
    """Decode a document of which other packages read a part.

    Raises:
        Undecodable: the document does not match the decoder's type.
    """
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        # msgspec checks nesting by Python's recursion limit, so a hostile document raises
        # RecursionError.
        raise Undecodable(f"{type(error).__name__}: {error}") from None


def spec_of(view: TrainingJobView) -> dict[str, Any]:
    """Return the spec. `spec.trainer.overrides`, which no schema bounds, stays encoded."""
    return {
        name: _trainer(raw, dropped_bytes=view.dropped_overrides_bytes)
        if name == "trainer"
        else msgspec.json.decode(raw)
        for name, raw in _fields_decoder.decode(view.spec_json).items()
    }


def status_of(view: TrainingJobView) -> dict[str, Any]:
    """Return the status."""
    return _status_decoder.decode(view.status_json) or {}


def key(metadata: Metadata) -> Key:
    """Return the key of an object with this metadata."""
    return Key(metadata.namespace, metadata.name)


_trainer_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_status_decoder: Final = msgspec.json.Decoder(dict[str, Any] | None)
S = TypeVar("S")


class _Custom(ObjectPart, frozen=True):
    """Any object with an unread spec and status."""

    metadata: Metadata
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _TrainingJobDocument(ObjectPart, frozen=True):
    """A TrainingJob whose spec fields and status are not decoded."""

    metadata: Metadata
    spec: dict[str, msgspec.Raw] | None = None
    status: msgspec.Raw = msgspec.Raw(b"{}")


def decoder_of(kind: type[S], view: Callable[[S], T]) -> Callable[[bytes | msgspec.Raw], T]:
    """Return the function that decodes one object of a kind; it raises Undecodable."""
    decode = msgspec.json.Decoder(kind).decode

    def decoded_view(raw: bytes | msgspec.Raw) -> T:
        try:
            # A document that is nested too deep for the decoder is cut and decoded again.
            try:
                # The first attempt is the fast path. Almost no document needs the copy that
                # `flattened` makes.
                return view(decode(raw))
            except RecursionError:
                return view(decode(flattened(bytes(raw))))
        except (msgspec.MsgspecError, ValueError) as error:
            raise Undecodable(str(error)) from error

    return decoded_view


def decoder_in_part(kind: type[S], view: Callable[[S], T]) -> Callable[[bytes | msgspec.Raw], T]:
    """Return the function that decodes what can be read; it raises Undecodable without a name."""

    def decoded_view(raw: bytes | msgspec.Raw) -> T:
        try:
            return view(readable_parts(kind, raw))
        except ValueError as error:  # msgspec's errors among them
            raise Undecodable(str(error)) from error

    return decoded_view


def _pod_view(wire_pod: builtin.PlacedPod) -> PodView:
    metadata, spec, status = wire_pod.metadata, wire_pod.spec, wire_pod.status
    # The API server keys conditions by type, so no type occurs twice.
    conditions = {condition.type: condition for condition in status.conditions or ()}
    disrupted = conditions.get("DisruptionTarget")
    gate = gate_of(metadata, spec)
    return PodView(
        # Namespaces, owners and nodes repeat across 40,000 pods. Interning stores each text once.
        namespace=sys.intern(metadata.namespace),
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        owner_uid=sys.intern(_controller_uid(metadata.owner_references)),
        labels=_of_pod(metadata.labels),
        annotations=_of_pod(metadata.annotations),
        node_name=sys.intern(spec.node_name),
        phase=PodPhase(status.phase),
        pod_ip=status.pod_ip,
        ready=_is_true(conditions.get("Ready")),
        reason=_text(status.reason),
        message=_text(status.message),
        terminating=bool(metadata.deletion_timestamp),
        # A nomination of a bound pod is stale: its requests already count on its node.
        nominated_node="" if spec.node_name else sys.intern(status.nominated_node_name or ""),
        deletion_time=metadata.deletion_timestamp or "",
        grace_seconds=metadata.deletion_grace_period_seconds or 0,
        # Finalizers matter only in messages about a pod that does not go away.
        finalizers=_finalizers(metadata) if metadata.deletion_timestamp else (),
        # A false DisruptionTarget is history: the eviction was withdrawn.
        disruption_reason=disrupted.reason if disrupted and _is_true(disrupted) else "",
        requests=bounded_requests(spec, status),
        channel_claim=channel_claim(status),
        group=pod_group_of(metadata, spec),
        # The claims of other pods that wait restrict no place of ours.
        claims=claims_of(spec, pod=metadata.name) if spec.node_name or gate is not None else (),
        containers=tuple(map(_container_view, status.container_statuses or ())),
        init_containers=_init_container_views(spec, status),
        gate=gate,
        deadline_seconds=spec.active_deadline_seconds,
        # Only pods with a deadline need the time, so the other 40,000 do not keep one.
        start_time=(status.start_time or "") if spec.active_deadline_seconds else "",
        is_static=_MIRROR in (metadata.annotations or {}),
    )


def _pod_in_part(wire_pod: builtin.PlacedPod) -> PodView:
    """Return what can be read of a bound pod. Its node takes no new pods (`PodView.unread`).

    Raises:
        ValueError: it is not bound. Part of a group that waits must not look like the whole.
    """
    spec = wire_pod.spec
    if not spec.node_name:
        raise ValueError("it is not bound")
    place = builtin.PlacedPodSpec(node_name=spec.node_name)
    containers = structs.replace(place, containers=list(map(_legible, spec.containers)))
    # The first value that can be read counts: all, the containers' requests, only the place.
    for part in (spec, containers):
        try:
            view = _pod_view(structs.replace(wire_pod, spec=part))
        except ValueError:
            continue
        return structs.replace(view, unread=True)
    return structs.replace(_pod_view(structs.replace(wire_pod, spec=place)), unread=True)


def _legible(container: builtin.Container) -> builtin.Container:
    requests = _quantities(container.resources.requests)
    return builtin.Container(
        name=container.name, resources=builtin.ResourceRequirements(requests=requests)
    )


def _quantities(texts: builtin.Quantities | None) -> builtin.Quantities:
    return {name: text for name, text in (texts or {}).items() if is_quantity(str(text))}


def _pod_manifest_view(wire_pod: builtin.PlacedPod) -> PodView:
    return _pod_view(structs.replace(wire_pod, spec=with_default_requests(wire_pod.spec)))


def _finalizers(metadata: Metadata) -> tuple[str, ...]:
    """Return the first finalizers, for messages. A tenant may write any number of them."""
    return tuple(map(_text, (metadata.finalizers or ())[:_MAX_FINALIZERS]))


def _init_container_views(
    spec: builtin.PodSpec, status: builtin.PodStatus
) -> tuple[ContainerView, ...]:
    # KEP-753: the kubelet restarts these, so their exit does not end the pod.
    sidecars = {c.name for c in spec.init_containers or () if c.restart_policy == "Always"}
    return tuple(
        _container_view(each, is_sidecar=each.name in sidecars)
        for each in status.init_container_statuses or ()
    )


def _container_view(status: builtin.ContainerStatus, *, is_sidecar: bool = False) -> ContainerView:
    waiting = status.state.waiting
    ended = status.state.terminated
    if waiting is None and ended is None:
        image = status.image_id[:_MAX_IMAGE_CHARS]
        return _running_view(status.name, ready=status.ready, is_sidecar=is_sidecar, image=image)
    return ContainerView(
        name=sys.intern(status.name),
        ready=status.ready,
        is_sidecar=is_sidecar,
        image_id=sys.intern(status.image_id[:_MAX_IMAGE_CHARS]),  # few images, many pods
        waiting_reason=_text(waiting.reason) if waiting else "",
        waiting_message=_text(waiting.message) if waiting else "",
        exit_code=ended.exit_code if ended else None,
        exit_reason=_text(ended.reason) if ended else "",
        termination_message=plain_lines(ended.message[:MAX_TERMINATION_CHARS]) if ended else "",
        finished_time=(ended.finished_at or "") if ended else "",
    )


@lru_cache(maxsize=_MOST_RUNNING)
def _running_view(name: str, *, ready: bool, is_sidecar: bool, image: str) -> ContainerView:
    """Return the view of a container that runs: one for all pods of an image."""
    return ContainerView(
        name=sys.intern(name), ready=ready, is_sidecar=is_sidecar, image_id=sys.intern(image)
    )


def _node_view(wire_node: builtin.Node) -> NodeView:
    metadata, spec, status = wire_node.metadata, wire_node.spec, wire_node.status
    # `any` of an empty list is false: a node without a Ready condition is not ready.
    ready = [c for c in status.conditions or () if c.type == "Ready"]
    return NodeView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        # Pools and topology levels may name any label, so all of them are kept.
        labels=metadata.labels or {},
        annotations={
            name: text
            for name, text in (metadata.annotations or {}).items()
            if name.startswith(OUR_PREFIX) or name == _END_OF_NODE
        },
        taints=tuple(spec.taints or ()),
        # Healthy conditions repeat in every heartbeat. Keeping only faults makes most updates
        # equal.
        conditions=tuple(map(_condition_view, filter(_is_bad, status.conditions or ()))),
        unschedulable=spec.unschedulable,
        allocatable={
            resource: amount(resource, str(text))
            for resource, text in (status.allocatable or {}).items()
        },
        ready=any(map(_is_true, ready)),
        terminating=bool(metadata.deletion_timestamp),
        creation_time=metadata.creation_timestamp or "",
    )


def _node_in_part(wire_node: builtin.Node) -> NodeView:
    """Return what can be read of a node. It takes no new pods (`NodeView.unread`)."""
    offered = _quantities(wire_node.status.allocatable)
    status = structs.replace(wire_node.status, allocatable=offered)
    return structs.replace(_node_view(structs.replace(wire_node, status=status)), unread=True)


def _is_bad(condition: builtin.Condition) -> bool:
    """Return whether a condition names a fault or threat. `...Ready` is good when true."""
    # The kubelet's `...Pressure` and node-problem-detector's conditions are True on a fault.
    return (condition.status == "True") != condition.type.endswith("Ready")


def _condition_view(condition: builtin.Condition) -> ConditionView:
    return ConditionView(
        type=condition.type,
        status=condition.status,
        reason=_text(condition.reason),
        message=_text(condition.message[:_MAX_CONDITION_CHARS]),
        since_time=condition.last_transition_time or "",
    )


def _namespace_view(wire_namespace: builtin.Namespace) -> NamespaceView:
    metadata = wire_namespace.metadata
    return NamespaceView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        labels=metadata.labels or {},
        terminating=bool(metadata.deletion_timestamp)
        or wire_namespace.status.phase == "Terminating",
    )


def _priority_class_view(wire_priority_class: builtin.PriorityClass) -> PriorityClassView:
    return PriorityClassView(
        name=wire_priority_class.metadata.name,
        uid=wire_priority_class.metadata.uid,
        resource_version=wire_priority_class.metadata.resource_version,
        value=wire_priority_class.value,
        global_default=wire_priority_class.global_default,
        # Absent means PreemptLowerPriority, the server's default.
        preempts=wire_priority_class.preemption_policy != "Never",
    )


def _training_job_view(stored: _TrainingJobDocument) -> TrainingJobView:
    # An object without a spec still gets a view, so that the operator can report it.
    metadata, spec, dropped_bytes = stored.metadata, dict(stored.spec or {}), 0
    trainer = _trainer_decoder.decode(spec["trainer"]) if "trainer" in spec else None
    # Overrides have no schema. Large ones are dropped, and only their size is kept.
    if trainer and len(bytes(trainer.get("overrides", msgspec.Raw()))) > MAX_BYTES:
        dropped_bytes = len(bytes(trainer.pop("overrides")))
        spec["trainer"] = msgspec.Raw(msgspec.json.encode(trainer))
    view = TrainingJobView(
        namespace=sys.intern(metadata.namespace),
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        generation=metadata.generation,
        creation_time=metadata.creation_timestamp or "",
        deletion_time=metadata.deletion_timestamp or "",
        # The encoder writes fields in their order, so equal specs give equal strings.
        spec_json=sys.intern(msgspec.json.encode(spec).decode()),  # sweeps repeat theirs
        dropped_overrides_bytes=dropped_bytes,
        status_json=bytes(stored.status),
    )
    spec_of(view)  # raises now rather than where nobody expects it
    status_of(view)
    return view


def _trainer(raw: msgspec.Raw, *, dropped_bytes: int) -> dict[str, Any] | None:
    """Return the trainer's fields, with overrides as text, or only their size if dropped."""
    fields = _trainer_decoder.decode(raw)
    trainer: dict[str, Any] | None = fields and {
        name: Overrides.of_json(bytes(field)) if name == "overrides" else msgspec.json.decode(field)
        for name, field in fields.items()
    }
    if dropped_bytes:
        return {**(trainer or {}), "overrides": Overrides(size_bytes=dropped_bytes, text=b"")}
    return trainer


def _runtime_class_view(stored: builtin.RuntimeClass) -> RuntimeClassView:
    metadata, overhead, scheduling = stored.metadata, stored.overhead, stored.scheduling
    amounts = (overhead.pod_fixed or {}) if overhead is not None else {}
    selector = (scheduling.node_selector or {}) if scheduling is not None else {}
    tolerations = (scheduling.tolerations or ()) if scheduling is not None else ()
    return RuntimeClassView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        # Sorted, so that equal overheads compare equal as tuples.
        overhead=tuple(sorted((name, amount(name, str(text))) for name, text in amounts.items())),
        node_selector=tuple(sorted(selector.items())),
        tolerations=tuple(tolerations),
    )


def _event_view(stored: builtin.StoredEvent) -> EventView:
    # The time of a series is newest. Components of the old API set only the deprecated field.
    series = stored.series.last_observed_time if stored.series is not None else None
    return EventView(
        reason=stored.reason or "",
        message=(stored.note or "")[:_MAX_TEXT_CHARS],
        time=series or stored.deprecated_last_timestamp or stored.event_time or "",
        warning=stored.type == "Warning",
    )


def _object_view(stored: _Custom) -> ObjectView:
    metadata = stored.metadata
    return ObjectView(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        generation=metadata.generation,
        creation_time=metadata.creation_timestamp or "",
        deletion_time=metadata.deletion_timestamp or "",
        labels=_ours(metadata.labels),
        annotations=_ours(metadata.annotations),
        spec=stored.spec or {},
        status=stored.status or {},
    )


def _text(text: str) -> str:
    """Return a component's text, bounded and safe to repeat."""
    return plain(text[:_MAX_TEXT_CHARS])


def _controller_uid(owners: Iterable[OwnerReference] | None) -> str:
    return next((owner.uid for owner in owners or () if owner.controller), "")


def _ours(texts: Mapping[str, str] | None) -> dict[str, str]:
    return {name: text for name, text in (texts or {}).items() if name.startswith(OUR_PREFIX)}


def _of_pod(texts: Mapping[str, str] | None) -> dict[str, str]:
    """Return the texts that we use. Equal texts of a gang's pods are stored once.

    Ours are short. A tenant may write 256 KiB of annotations into each pod.
    """
    return {
        sys.intern(name): sys.intern(text)
        for name, text in (texts or {}).items()
        if name in _POD_TEXTS and len(text) <= MAX_POD_TEXT_CHARS
    }


def _is_true(condition: Any) -> bool:
    return condition is not None and condition.status == "True"


def _metadata_of(document: builtin.Identity) -> Metadata:
    return document.metadata


pod = decoder_of(builtin.PlacedPod, _pod_view)
pod_manifest = decoder_of(builtin.PlacedPod, _pod_manifest_view)
"""A pod that no API server may have stored, with the server's default requests."""
node = decoder_of(builtin.Node, _node_view)
namespace = decoder_of(builtin.Namespace, _namespace_view)
priority_class = decoder_of(builtin.PriorityClass, _priority_class_view)
runtime_class = decoder_of(builtin.RuntimeClass, _runtime_class_view)
event = decoder_of(builtin.StoredEvent, _event_view)
custom_object = decoder_of(_Custom, _object_view)
"""Spec and status are plain JSON."""
training_job = decoder_of(_TrainingJobDocument, _training_job_view)
"""Overrides over their limit are not kept. `spec_of` and `status_of` can decode every view."""
pod_in_part = decoder_in_part(builtin.PlacedPod, _pod_in_part)
"""A pod that `pod` rejects."""
node_in_part = decoder_in_part(builtin.Node, _node_in_part)
identity = decoder_of(builtin.Identity, _metadata_of)
"""The metadata of a document that its own decoder may reject."""
