"""Change a Job, JobSet or other kind as the operator writes it: resumed, or suspended again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from drumline.controller.workloads.conversion import PlacesFound, places_in, places_text
from drumline.kube.kinds import JOBS, Resource
from drumline.kube.workload_kinds import KINDS, at, parts_of
from drumline_api.base import ANNOTATION_ADMITTED, LABEL_WORKLOAD, LABEL_WORKLOAD_PART
from drumline_api.gpupool import GpuPoolSpec

Json = dict[str, Any]
_LABEL_VALUE_CHARS: Final = 63
"""Longest label value in Kubernetes."""


def suspended_again(body: Json, *, resource: Resource) -> Json | None:
    """Return the object suspended again, or None if it was not admitted or is suspended.

    The node selectors of its templates are restored, so that it may run in another pool next time.
    The API server rejects changes to the template of a running Job.

    Args:
        body: the object in the API server.
        resource: its kind.
    """
    kind, made = KINDS[resource], copy.deepcopy(body)
    annotations: Json = made["metadata"].get("annotations") or {}
    if at(made, kind.suspend) or ANNOTATION_ADMITTED not in annotations:
        return None
    switch = made
    for field in kind.suspend[:-1]:
        switch = _map_at(switch, field)  # its owner may have taken the whole of it away
    switch[kind.suspend[-1]] = True
    places = places_in(annotations.pop(ANNOTATION_ADMITTED))
    if resource != JOBS:
        # its owner may have made something else of it meanwhile: it is suspended all the same
        with suppress(AttributeError, KeyError, TypeError):
            for part in parts_of(kind, made):
                if part.name in places:
                    _restore_selector(part.template["spec"], places[part.name].selected)
    return made


def resumed(
    body: Json,
    *,
    resource: Resource,
    places: Mapping[str, PlacesFound],
    pools: Mapping[str, GpuPoolSpec],
) -> Json | None:
    """Return the object resumed, or None if it was resumed already.

    Its pods get the labels by which they count for it, and run in the pool in which they are
    charged. The API server rejects changes to the template of a Job that has pods.

    Args:
        body: the object in the API server.
        resource: its kind.
        places: places of each part, by its name.
        pools: pools by name.
    """
    # Phase 1: the switch and the mark, in one write.
    kind, made = KINDS[resource], copy.deepcopy(body)
    switch: Json = at(made, kind.suspend[:-1]) or {}
    if not switch.get(kind.suspend[-1]):
        return None
    switch[kind.suspend[-1]] = False
    annotations = _map_at(made["metadata"], "annotations")
    annotations[ANNOTATION_ADMITTED] = places_text(places)
    # A Job that has started keeps its template.
    if resource == JOBS and made.get("status", {}).get("startTime"):
        return made
    # Phase 2: the templates of all parts. Changed node selectors are noted for the way back.
    noted = dict(places)
    for part in parts_of(kind, made):
        labels = _map_at(_map_at(part.template, "metadata"), "labels")
        labels[LABEL_WORKLOAD] = made["metadata"]["uid"]
        if part.name:
            labels[LABEL_WORKLOAD_PART] = part.name
        pool = pools.get(places[part.name].pool) if part.name in places else None
        if pool is not None:
            selected = _add_selector(part.template["spec"], pool.node_selector)
            noted[part.name] = replace(places[part.name], selected=selected)
    if resource != JOBS:
        annotations[ANNOTATION_ADMITTED] = places_text(noted)
    return made


def _add_selector(spec: Json, labels: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Write labels to the node selector of a template. Return the changed ones."""
    selector = _map_at(spec, "nodeSelector")
    changed = {
        label: (value, _label_value(selector.get(label)))
        for label, value in labels.items()
        if selector.get(label) != value
    }
    selector.update(labels)
    return changed


def _label_value(stored: object) -> str | None:
    """Return a stored label value, or None if it is not valid.

    Most templates have no schema, and the annotation must stay readable.
    """
    if isinstance(stored, str) and len(stored) <= _LABEL_VALUE_CHARS:
        return stored
    return None


def _restore_selector(spec: Json, selected: Mapping[str, tuple[str, str | None]]) -> None:
    """Undo `_add_selector`, except for labels that the owner has changed since."""
    selector: Json = spec["nodeSelector"]
    for label, (value, before) in selected.items():
        if selector.get(label) != value:
            continue
        if before is None:
            del selector[label]
        else:
            selector[label] = before


def _map_at(body: Json, field: str) -> Json:
    """Return the map in a field. Create it if it is missing or null.

    Most templates have no schema.
    """
    if body.get(field) is None:
        body[field] = {}
    return body[field]
