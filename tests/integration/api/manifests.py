"""The smallest good object of each kind, and how to bend one."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

_SPECS: dict[str, Json] = {
    "TrainingJob": {"queue": "research", "trainer": {}},
    "TrainingQueue": {"quotas": [{"gpuPool": "gpus", "nominalGpus": 8}]},
    "GpuPool": {"nodeSelector": {"nvidia.com/gpu.present": "true"}},
}


def manifest(kind: str, *, name: str = "probe", **changes: Any) -> Json:
    """A good object of this kind whose spec has `changes` laid over it; None removes a field."""
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": laid_over(_SPECS[kind], changes),
    }


def template_job(**changes: Any) -> Json:
    """A good job of a template of one's own, with `changes` laid over the template."""
    template = laid_over({"image": "registry.example.com/train:1"}, changes)
    return manifest("TrainingJob", trainer=None, template=template)


def laid_over(base: Json, changes: Json) -> Json:
    """`base` with `changes` merged into it, object by object; None removes."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = laid_over(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged
