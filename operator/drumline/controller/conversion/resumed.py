"""A Job or JobSet as the operator writes it once its queue has room."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

from drumline.api.base import ANNOTATION_ADMITTED, LABEL_WORKLOAD, LABEL_WORKLOAD_PART
from drumline.api.gpupool import GpuPoolSpec
from drumline.controller.conversion.workloads import PlacesFound, places_text

Json = dict[str, Any]


def resumed(
    body: Json, *, places: Mapping[str, PlacesFound], pools: Mapping[str, GpuPoolSpec]
) -> Json | None:
    """The object with its pods let go; None: it was resumed already.

    Its pods get the labels by which they count for it, and run in the pool in which they are
    charged. Of a Job that has pods the API server lets nobody change the template.

    Args:
        body: as the API server stores it.
        places: that were found, by the name of the part.
        pools: by name.
    """
    made = copy.deepcopy(body)
    if not made["spec"].get("suspend"):
        return None
    made["spec"]["suspend"] = False
    annotations = made["metadata"].setdefault("annotations", {})
    annotations[ANNOTATION_ADMITTED] = places_text(places)
    if made.get("status", {}).get("startTime"):
        return made
    for part, template in _templates(made).items():
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels[LABEL_WORKLOAD] = made["metadata"]["uid"]
        if part:
            labels[LABEL_WORKLOAD_PART] = part
        pool = pools.get(places[part].pool) if part in places else None
        if pool is not None:
            selector = template["spec"].setdefault("nodeSelector", {})
            selector.update(pool.node_selector)
    return made


def _templates(body: Json) -> dict[str, Json]:
    """Pod templates by the name of the part of the workload."""
    replicated = cast("list[Json] | None", body["spec"].get("replicatedJobs"))
    if replicated is None:
        return {"": body["spec"]["template"]}
    return {each["name"]: each["template"]["spec"]["template"] for each in replicated}
