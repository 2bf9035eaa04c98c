"""A Job, JobSet or the like as the operator writes it: let go once its queue has room, or back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from drumline.api.base import ANNOTATION_ADMITTED, LABEL_WORKLOAD, LABEL_WORKLOAD_PART
from drumline.api.gpupool import GpuPoolSpec
from drumline.controller.conversion.workloads import PlacesFound, places_text
from drumline.kube.kinds import JOBS, Resource
from drumline.kube.workload_kinds import KINDS, at, parts_of

Json = dict[str, Any]


def suspended_again(body: Json, *, resource: Resource) -> Json | None:
    """The object with its pods taken back, in line again; None: it was not let go, or is suspended.

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
    del annotations[ANNOTATION_ADMITTED]
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
    for part in parts_of(kind, made):
        labels = _map_at(_map_at(part.template, "metadata"), "labels")
        labels[LABEL_WORKLOAD] = made["metadata"]["uid"]
        if part.name:
            labels[LABEL_WORKLOAD_PART] = part.name
        pool = pools.get(places[part.name].pool) if part.name in places else None
        if pool is not None:
            _map_at(part.template["spec"], "nodeSelector").update(pool.node_selector)
    return made


def _map_at(body: Json, field: str) -> Json:
    """The map in a field, made where there is none, or null: no schema checks most templates."""
    if body.get(field) is None:
        body[field] = {}
    return body[field]
