"""Where a pod may run, as its spec says; read only of pods that wait for a queue."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import structs

from drumline.kube.views import ExpressionView, GateView, PlacementView
from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata

QUEUE_GATE: Final = "drumline.dev/queue"
"""The scheduling gate that holds a pod until its queue has room."""
_MAX_NAME_CHARS: Final = 253
_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_TOLERATION_OPERATORS: Final = frozenset({"", "Equal", "Exists", "Gt", "Lt"})
_EFFECTS: Final = frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"})
_selector_decoder: Final = msgspec.json.Decoder(dict[str, str] | None)
_affinity_decoder: Final = msgspec.json.Decoder(builtin.Affinity | None)
_tolerations_decoder: Final = msgspec.json.Decoder(list[builtin.Toleration] | None)


def gate_of(metadata: Metadata, spec: builtin.PlacedPodSpec) -> GateView | None:
    """How our gate holds a pod; None: it does not.

    Raises:
        ValueError: What the spec says of nodes is not what it should be.
    """
    gates = {gate.name for gate in spec.scheduling_gates or ()}
    if QUEUE_GATE not in gates:
        return None
    return GateView(
        created_time=metadata.creation_timestamp or "",
        is_last=len(gates) == 1,
        placement=structs.replace(_placement(spec), priority=spec.priority or 0),
    )


def placement_of_template(spec: builtin.PlacedPodSpec) -> PlacementView:
    """Where pods of a template may run, whose `priority` nobody has checked against its class.

    Raises:
        ValueError: What it says of nodes is not what it should be.
    """
    name = (spec.priority_class_name or "")[:_MAX_NAME_CHARS]
    return structs.replace(_placement(spec), priority_class=name)


def _placement(spec: builtin.PlacedPodSpec) -> PlacementView:
    """Where pods of this spec may run, without their priority.

    Raises:
        ValueError: What it says of nodes is not what it should be.
    """
    affinity = _affinity_decoder.decode(spec.affinity)
    node = affinity.node_affinity if affinity else None
    terms = node.required.node_selector_terms if node and node.required else None
    return PlacementView(
        node_selector=_selector_decoder.decode(spec.node_selector) or {},
        affinity=tuple(
            tuple(map(_expression, term.match_expressions or ())) for term in terms or ()
        ),
        tolerations=tuple(map(_toleration, _tolerations_decoder.decode(spec.tolerations) or ())),
    )


def _toleration(toleration: builtin.Toleration) -> builtin.Toleration:
    _check("operator of a toleration", toleration.operator, known=_TOLERATION_OPERATORS)
    _check("effect of a toleration", toleration.effect, known=_EFFECTS)
    return toleration


def _expression(expression: builtin.PodNodeExpression) -> ExpressionView:
    _check("operator of a node affinity", expression.operator, known=_OPERATORS)
    values = tuple(expression.values or ())
    return ExpressionView(key=expression.key, operator=expression.operator, values=values)


def _check(what: str, text: str, *, known: frozenset[str]) -> None:
    """Of templates of custom resources no API server has checked it."""
    if text not in known:
        raise ValueError(f"{text[:64]!r} is no {what}")
