"""A Job, JobSet or the like as the operator writes it: let go once its queue has room, or back."""

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
"""The most that Kubernetes takes."""


def suspended_again(body: Json, *, resource: Resource) -> Json | None:
    """The object with its pods taken back, in line again; None: it was not let go, or is suspended.

    The node selectors of its templates are again what they were, so that it may run in another pool
    next time. Of a Job that runs the API server lets nobody change the template.

    Args:
        body: as the API server stores it.
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
                    _take_back(part.template["spec"], places[part.name].selected)
    return made


def resumed(
    body: Json,
    *,
    resource: Resource,
    places: Mapping[str, PlacesFound],
    pools: Mapping[str, GpuPoolSpec],
) -> Json | None:
    """The object with its pods let go; None: it was resumed already.

    Its pods get the labels by which they count for it, and run in the pool in which they are
    charged. Of a Job that has pods the API server lets nobody change the template.

    Args:
        body: as the API server stores it.
        resource: its kind.
        places: that were found, by the name of the part.
        pools: by name.
    """
    kind, made = KINDS[resource], copy.deepcopy(body)
    switch: Json = at(made, kind.suspend[:-1]) or {}
    if not switch.get(kind.suspend[-1]):
        return None
    switch[kind.suspend[-1]] = False
    annotations = _map_at(made["metadata"], "annotations")
    annotations[ANNOTATION_ADMITTED] = places_text(places)
    if resource == JOBS and made.get("status", {}).get("startTime"):
        return made
    noted = dict(places)
    for part in parts_of(kind, made):
        labels = _map_at(_map_at(part.template, "metadata"), "labels")
        labels[LABEL_WORKLOAD] = made["metadata"]["uid"]
        if part.name:
            labels[LABEL_WORKLOAD_PART] = part.name
        pool = pools.get(places[part.name].pool) if part.name in places else None
        if pool is not None:
            selected = _select(part.template["spec"], pool.node_selector)
            noted[part.name] = replace(places[part.name], selected=selected)
    if resource != JOBS:
        annotations[ANNOTATION_ADMITTED] = places_text(noted)
    return made


def _select(spec: Json, labels: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Write labels into the node selector of a template; returns what that has changed."""
    selector = _map_at(spec, "nodeSelector")
    changed = {
        label: (value, _label_value(selector.get(label)))
        for label, value in labels.items()
        if selector.get(label) != value
    }
    selector.update(labels)
    return changed


def _label_value(stored: object) -> str | None:
    """None for what no label is: no schema checks most templates, and the mark has to be read."""
    if isinstance(stored, str) and len(stored) <= _LABEL_VALUE_CHARS:
        return stored
    return None


def _take_back(spec: Json, selected: Mapping[str, tuple[str, str | None]]) -> None:
    """Undo that, but for what its owner has changed since."""
    selector: Json = spec["nodeSelector"]
    for label, (value, before) in selected.items():
        if selector.get(label) != value:
            continue
        if before is None:
            del selector[label]
        else:
            selector[label] = before


def _map_at(body: Json, field: str) -> Json:
    """The map in a field, made where there is none, or null: no schema checks most templates."""
    if body.get(field) is None:
        body[field] = {}
    return body[field]
