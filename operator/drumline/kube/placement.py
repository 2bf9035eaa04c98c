"""Where a pod may run, as its spec says; read only of pods that wait for a queue."""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.kube import wire
from drumline.kube.views import ExpressionView, GateView, PlacementView, TolerationView

QUEUE_GATE: Final = "drumline.dev/queue"
"""The scheduling gate that holds a pod until its queue has room."""
_selector_decoder: Final = msgspec.json.Decoder(dict[str, str] | None)
_affinity_decoder: Final = msgspec.json.Decoder(wire.Affinity | None)
_tolerations_decoder: Final = msgspec.json.Decoder(list[wire.Toleration] | None)


def gate_of(metadata: wire.Metadata, spec: wire.PodSpec) -> GateView | None:
    """How our gate holds a pod; None: it does not.

    Raises:
        msgspec.MsgspecError: What the spec says of nodes is not what it should be.
    """
    gates = {gate.name for gate in spec.scheduling_gates or ()}
    if QUEUE_GATE not in gates:
        return None
    return GateView(
        created_time=metadata.creation_timestamp or "",
        is_last=len(gates) == 1,
        placement=placement_of(spec),
    )


def placement_of(spec: wire.PodSpec) -> PlacementView:
    """Where pods of this spec may run.

    Raises:
        msgspec.MsgspecError: What it says of nodes is not what it should be.
    """
    affinity = _affinity_decoder.decode(spec.affinity)
    node = affinity.node_affinity if affinity else None
    terms = node.required.node_selector_terms if node and node.required else None
    return PlacementView(
        priority=spec.priority or 0,
        node_selector=_selector_decoder.decode(spec.node_selector) or {},
        affinity=tuple(
            tuple(map(_expression, term.match_expressions or ())) for term in terms or ()
        ),
        tolerations=tuple(
            TolerationView(
                key=each.key, operator=each.operator, value=each.value, effect=each.effect
            )
            for each in _tolerations_decoder.decode(spec.tolerations) or ()
        ),
    )


def _expression(expression: wire.PodNodeExpression) -> ExpressionView:
    values = tuple(expression.values or ())
    return ExpressionView(key=expression.key, operator=expression.operator, values=values)
