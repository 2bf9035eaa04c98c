"""Node constraints in a pod's spec. They are read only for pods that wait for a queue."""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import structs

from drumline.kube.views import ExpressionView, GateView, PlacementView
from drumline_api.base import LABEL_POD_GROUP
from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata
from drumline_contract import plain

QUEUE_GATE: Final = "drumline.dev/queue"
"""The scheduling gate that holds a pod until its queue has room."""
_MAX_NAME_CHARS: Final = 253
MAX_CONDITIONS: Final = 128
"""Most labels, terms, expressions and tolerations of a pod that waits for a queue.

A search checks each of them on each node, and a pod may have 40,000.
"""
MAX_VALUES: Final = 1024
"""Most values of its expressions."""
_MOST_KNOWN: Final = 128
"""Most different constraints that are remembered. The pods of a group mostly have equal ones."""
_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_TOLERATION_OPERATORS: Final = frozenset({"", "Equal", "Exists", "Gt", "Lt"})
_FIELDS: Final = frozenset({builtin.NODE_NAME})
_EFFECTS: Final = frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"})
_selector_decoder: Final = msgspec.json.Decoder(dict[str, str] | None)
_affinity_decoder: Final = msgspec.json.Decoder(builtin.Affinity | None)
_volumes_decoder: Final = msgspec.json.Decoder(list[builtin.PodVolume] | None)
_MAX_CLAIMS: Final = 128
_tolerations_decoder: Final = msgspec.json.Decoder(list[builtin.Toleration] | None)


_GROUP_LABELS: Final = (
    LABEL_POD_GROUP,
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
)
"""Labels of our gate, of the scheduler plugins and of Koordinator."""
_GROUP_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "pod-group-name")
"""Annotations of Volcano and of the KAI Scheduler."""
_GROUP_KEYS: Final = frozenset({*_GROUP_LABELS, *_GROUP_ANNOTATIONS})


def pod_group_of(metadata: Metadata, spec: builtin.PlacedPodSpec) -> str:
    """Return the group of pods that a scheduler places together, or ''.

    Pods of one namespace with equal texts are one group.
    """
    native, workload = spec.scheduling_group, spec.workload_ref
    if native is not None and native.pod_group_name:
        name = native.pod_group_name
    elif workload is not None and workload.name:
        parts = (workload.name, workload.pod_group, workload.pod_group_replica_key or "")
        name = "-".join(filter(None, parts))
    else:
        labels, annotations = metadata.labels or {}, metadata.annotations or {}
        # Most pods have no group, so look for any of the keys first.
        if _GROUP_KEYS.isdisjoint(labels) and _GROUP_KEYS.isdisjoint(annotations):
            return ""
        named = chain(map(labels.get, _GROUP_LABELS), map(annotations.get, _GROUP_ANNOTATIONS))
        name = next(filter(None, named), "")
    # A tenant writes the text.
    return sys.intern(plain(name[:_MAX_NAME_CHARS])) if name else ""


def claims_of(spec: builtin.PlacedPodSpec, *, pod: str = "") -> tuple[str, ...]:
    """Return the PersistentVolumeClaims of a pod, at most `_MAX_CLAIMS`. Most pods have none.

    Args:
        spec: spec of the pod.
        pod: name of the pod, by which claims are made for ephemeral volumes. '': those are left
            out.

    Raises:
        ValueError: the volumes are not valid.
    """
    raw = bytes(spec.volumes)
    if not (b'"persistentVolumeClaim"' in raw or b'"ephemeral"' in raw):
        return ()
    volumes = _volumes_decoder.decode(raw) or ()
    named = [
        each.persistent_volume_claim.claim_name for each in volumes if each.persistent_volume_claim
    ]
    # The controller names the claim of an ephemeral volume after pod and volume.
    made = [f"{pod}-{each.name}" for each in volumes if pod and each.ephemeral is not None]
    return tuple(map(sys.intern, [*named, *made][:_MAX_CLAIMS]))


def gate_of(metadata: Metadata, spec: builtin.PlacedPodSpec) -> GateView | None:
    """Return the view of our gate on a pod, or None without the gate.

    Raises:
        ValueError: the node constraints are not valid.
    """
    gates = {gate.name for gate in spec.scheduling_gates or ()}
    # Without our gate nothing below is needed, which is the case for almost all pods.
    if QUEUE_GATE not in gates:
        return None
    # The server writes the priority into every pod. A manifest may have the class alone.
    if spec.priority is None:
        placement = placement_of_template(spec)
    else:
        placement = _placement(spec, priority=spec.priority)
    return GateView(
        created_time=metadata.creation_timestamp or "",
        # A pod with another gate cannot start yet, even after ours is removed.
        is_last=len(gates) == 1,
        placement=placement,
    )


def placement_of_template(spec: builtin.PlacedPodSpec) -> PlacementView:
    """Return the node constraints of a template. Its `priority` was not checked by the API server.

    Raises:
        ValueError: the node constraints are not valid.
    """
    # A tenant may write any text as the name of a class. The server has not compared it.
    name = (spec.priority_class_name or "")[:_MAX_NAME_CHARS]
    placement = _placement(spec, priority_class=name)
    return _on_node(placement, spec.node_name[:_MAX_NAME_CHARS]) if spec.node_name else placement


def _on_node(placement: PlacementView, name: str) -> PlacementView:
    """Return the node constraints of pods that name their node, which no scheduler changes."""
    here = ExpressionView(key=builtin.NODE_NAME, operator="In", values=(name,))
    # A term without expressions matches no node.
    terms = tuple((*term, here) if term else () for term in placement.affinity)
    return structs.replace(placement, affinity=terms or ((here,),))


def _placement(spec: builtin.PlacedPodSpec, **priority: int | str) -> PlacementView:
    """Return the node constraints of this spec, with a priority. Equal pods share one value.

    Raises:
        ValueError: the node constraints are not valid.
    """
    texts = bytes(spec.affinity), bytes(spec.node_selector), bytes(spec.tolerations)
    return _decoded_placement(*texts, tuple(priority.items()))


@lru_cache(maxsize=_MOST_KNOWN)
def _decoded_placement(
    affinity_json: bytes,
    selector_json: bytes,
    tolerations_json: bytes,
    priority: tuple[tuple[str, Any], ...],
) -> PlacementView:
    affinity = _affinity_decoder.decode(affinity_json)
    node = affinity.node_affinity if affinity else None
    # Preferred affinity is ignored: it never forbids a node.
    terms = (node.required.node_selector_terms if node and node.required else None) or ()
    selector: dict[str, str] = _selector_decoder.decode(selector_json) or {}
    tolerations = _tolerations_decoder.decode(tolerations_json) or ()
    expressions = [each for term in terms for each in _conditions(term)]
    values = sum(len(each.values or ()) for each in expressions)
    conditions = len(selector) + len(tolerations) + len(terms) + len(expressions)
    if conditions > MAX_CONDITIONS or values > MAX_VALUES:
        raise ValueError(
            f"{conditions} node labels, terms, expressions and tolerations with {values} values:"
            f" want at most {MAX_CONDITIONS} and {MAX_VALUES} for a pod that waits for quota"
        )
    return PlacementView(
        node_selector=selector,
        affinity=tuple(tuple(map(_expression, _conditions(term))) for term in terms),
        tolerations=tuple(map(_toleration, tolerations)),
        **dict(priority),
    )


def _conditions(term: builtin.PodNodeTerm) -> tuple[builtin.PodNodeExpression, ...]:
    for field in term.match_fields or ():
        _check("field of a node", field.key, known=_FIELDS)
    return term.conditions()


def _toleration(toleration: builtin.Toleration) -> builtin.Toleration:
    _check("operator of a toleration", toleration.operator, known=_TOLERATION_OPERATORS)
    # An empty operator means Equal, and an empty effect matches all effects.
    _check("effect of a toleration", toleration.effect, known=_EFFECTS)
    return toleration


def _expression(expression: builtin.PodNodeExpression) -> ExpressionView:
    _check("operator of a node affinity", expression.operator, known=_OPERATORS)
    values = tuple(expression.values or ())
    return ExpressionView(key=expression.key, operator=expression.operator, values=values)


def _check(what: str, text: str, *, known: frozenset[str]) -> None:
    """Raise if a value is not known. No API server has checked templates of custom resources."""
    if text not in known:
        raise ValueError(f"{text[:64]!r} is no {what}")
