"""The nodes that can mount a PersistentVolume, by its node affinity and its zone labels.

Older volumes have labels with their zone and region instead of a node affinity. kube-scheduler
compares them with the labels of a node (VolumeZone). A node without such labels can mount every
volume.

    a volume in zone a     -> (zone In [a]) or (no zone label and no region label)
    the label a__b         -> (zone In [a, b]) or ...
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, product
from typing import Final

from drumline.kube.views import ExpressionView
from drumline_api.objects import builtin, storage

MAX_TERMS: Final = 64
"""Most terms that are kept. More are of no practical use, and each costs a pass over all nodes."""
_ZONE_LABELS: Final = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of a volume, and the label of a node that is compared."""
_SEPARATOR: Final = "__"
"""Separates the zones of a volume that is in several."""

Terms = tuple[tuple[ExpressionView, ...], ...]


def volume_terms(stored: storage.PersistentVolume) -> Terms:
    """Return the terms of which a node must meet one. Empty: every node can mount the volume."""
    affinity = stored.spec.node_affinity
    required = affinity.required if affinity is not None else None
    terms = (required.node_selector_terms or ()) if required is not None else ()
    own = tuple(tuple(map(_expression, term.conditions())) for term in terms[:MAX_TERMS])
    zones = _zone_terms(stored.metadata.labels or {})
    if not (own and zones):
        return own or zones
    # An empty term holds for no node, with and without zones.
    both = (term + zone for term, zone in product(own, zones) if term)
    return tuple(islice(both, MAX_TERMS)) or own


def _zone_terms(labels: Mapping[str, str]) -> Terms:
    inside = tuple(
        ExpressionView(key=key, operator="In", values=values)
        for label, key in _ZONE_LABELS.items()
        # kube-scheduler ignores a label with an empty zone, too.
        if label in labels and all(values := tuple(labels[label].split(_SEPARATOR)))
    )
    if not inside:
        return ()
    unlabelled = (
        ExpressionView(key=key, operator="DoesNotExist")
        for key in dict.fromkeys(_ZONE_LABELS.values())
    )
    return inside, tuple(unlabelled)


def _expression(stored: builtin.PodNodeExpression) -> ExpressionView:
    return ExpressionView(
        key=stored.key, operator=stored.operator, values=tuple(stored.values or ())
    )
