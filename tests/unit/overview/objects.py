"""Objects of a small cluster as the API server prints them; what a test does not say is plain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from drumline.overview.objects import (
    ClusterObjects,
    JobObject,
    decoded,
)
from drumline.overview.workload_objects import PodObject
from drumline_api.objects import builtin
from drumline_api.objects.custom import StoredGpuPool, StoredTrainingQueue

NOW = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""


def at(offset: float) -> str:
    """NOW and so many seconds, as the API server writes it."""
    return datetime.fromtimestamp(NOW + offset, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_job(name: str, *, namespace: str = "team", **fields: Any) -> dict[str, Any]:
    """A waiting job of 8 GPUs; `status` and `spec` fields replace those of the plain job."""
    spec = {"queue": "research", "nodes": 1, "gpusPerNode": 8, **fields.pop("spec", {})}
    status = fields.pop("status", {"phase": "Pending", "reason": "QuotaExhausted"})
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": at(fields.pop("created", -600)),
        },
        "spec": spec,
        "status": status,
        **fields,
    }


def running(**fields: Any) -> dict[str, Any]:
    """The status of a job that runs on node-1 of pool gpus."""
    return {
        "phase": "Running",
        "reason": "Training",
        "assignment": {"gpuPool": "gpus", "prefix": "node-", "nodes": ["1"]},
        "admittedAt": at(-300),
        "conditions": [{"type": "Running", "status": "True"}],
        **fields,
    }


def a_queue(name: str, *, gpus: int = 16, status: Any = None, **spec: Any) -> dict[str, Any]:
    quotas = [{"gpuPool": "gpus", "nominalGpus": gpus}]
    return {
        "kind": "TrainingQueue",
        "metadata": {"name": name},
        "spec": {"quotas": quotas, **spec},
        "status": status or {},
    }


def a_pool(name: str = "gpus", **spec: Any) -> dict[str, Any]:
    levels = [{"name": "rack", "nodeLabel": "rack"}]
    selector = {"pool": name}
    fields = {"nodeSelector": selector, "topologyLevels": levels, **spec}
    return {"kind": "GpuPool", "metadata": {"name": name}, "spec": fields}


def a_node(name: str, *, rack: str = "r1", pool: str = "gpus", **fields: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": pool, "rack": rack}},
        "spec": fields.get("spec", {}),
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "96"},
            "conditions": fields.get("conditions", [{"type": "Ready", "status": "True"}]),
        },
    }


def a_pod(name: str, *, gpus: int = 1, queue: str = "research", **fields: Any) -> dict[str, Any]:
    """A pod that names a queue and has run for five minutes; `metadata` and `spec` add to it."""
    container = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    status = fields.get("status", {"phase": "Running", "startTime": at(-300)})
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        **fields.get("metadata", {}),
    }
    labels = {"drumline.dev/queue": queue, **metadata.get("labels", {})}
    return {
        "kind": "Pod",
        "metadata": {**metadata, "labels": labels},
        "spec": {"containers": [container], **fields.get("spec", {})},
        "status": status,
    }


def a_workload(kind: str, name: str, *, suspend: bool = True, **fields: Any) -> dict[str, Any]:
    """A Job or the like that names a queue."""
    labels = {"drumline.dev/queue": "research"}
    metadata = {"name": name, "namespace": "team", "labels": labels, **fields.get("metadata", {})}
    status = fields.get("status", {})
    return {"kind": kind, "metadata": metadata, "spec": {"suspend": suspend}, "status": status}


def a_priority_class(name: str, value: int, *, default: bool = False) -> dict[str, Any]:
    return {
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "globalDefault": default,
    }


KINDS = {
    "TrainingJob": JobObject,
    "TrainingQueue": StoredTrainingQueue,
    "GpuPool": StoredGpuPool,
    "Node": builtin.Node,
    "PriorityClass": builtin.PriorityClass,
    "ResourceSlice": builtin.ResourceSlice,
    "Pod": PodObject,
}


FORBIDDEN = {"TrainingQueue": "is not readable by you", "GpuPool": "is not readable by you"}


def a_cluster(
    *objects: dict[str, Any], as_of: float = NOW, unread: Mapping[str, str] | None = None
) -> ClusterObjects:
    """The values of these objects. A kind without objects counts as not read."""

    def of(kind: str) -> tuple[Any, ...]:
        raws = [json.dumps(each).encode() for each in objects if each["kind"] == kind]
        values = decoded(raws, KINDS[kind])
        assert values.unreadable == 0
        return values.objects

    return ClusterObjects(
        as_of=as_of,
        jobs=of("TrainingJob"),
        queues=of("TrainingQueue"),
        pools=of("GpuPool"),
        nodes=of("Node"),
        priorities=of("PriorityClass"),
        slices=of("ResourceSlice"),
        pods=of("Pod"),
        unread={kind: "was not read" for kind in FORBIDDEN if not of(kind)}
        if unread is None
        else unread,
    )


def printed(objects: Sequence[dict[str, Any]]) -> str:
    """As `kubectl get -o json` prints them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
