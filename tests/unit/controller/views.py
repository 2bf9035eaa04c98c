"""Views as the codec makes them: what a test does not say has a plain default."""

from __future__ import annotations

import json
from typing import Any

from drumline.kube import codec
from drumline.kube.views import (
    NodeView,
    ObjectView,
    PodPhase,
    PodView,
    PriorityClassView,
    TrainingJobView,
)

CREATED = "2023-11-14T22:13:20Z"


def job_view(
    name: str = "llama", *, uid: str = "job-1", version: int = 1, **rest: Any
) -> TrainingJobView:
    """A TrainingJob of two nodes with two GPUs each."""
    status = rest.pop("status", {})
    generation = rest.pop("generation", 1)
    program = {} if "template" in rest else {"trainer": {}}
    spec = {"queue": "research", "nodes": 2, "gpusPerNode": 2, **program, **rest}
    metadata = {
        "namespace": "team",
        "name": name,
        "uid": uid,
        "resourceVersion": str(version),
        "generation": generation,
        "creationTimestamp": CREATED,
    }
    document = {"metadata": metadata, "spec": spec, "status": status}
    return codec.training_job(json.dumps(document).encode())


def pod_view(
    job: str = "llama",
    index: int = 0,
    *,
    generation: int = 1,
    job_uid: str = "job-1",
    uid: str = "",
    gpus: int = 2,
    **rest: Any,
) -> PodView:
    """A member of a job on node-0."""
    fields: dict[str, Any] = {
        "node_name": "node-0",
        "requests": {"nvidia.com/gpu": gpus, "cpu": 1000},
        "phase": PodPhase.RUNNING,
        **rest,
    }
    return PodView(
        namespace="team",
        name=f"{job}-{index}-g{generation}",
        uid=uid or f"{job_uid}-{index}-{generation}",
        resource_version="1",
        owner_uid=job_uid,
        labels={
            "drumline.dev/job": job,
            "drumline.dev/job-uid": job_uid,
            "drumline.dev/index": str(index),
            "drumline.dev/generation": str(generation),
        },
        **fields,
    )


def foreign_pod(name: str, *, node: str = "node-0", gpus: int = 1, **rest: Any) -> PodView:
    """A pod of another owner."""
    return PodView(
        namespace="other",
        name=name,
        uid=rest.pop("uid", name),
        resource_version="1",
        node_name=node,
        requests={"nvidia.com/gpu": gpus},
        **rest,
    )


def node_view(name: str = "node-0", *, version: int = 1, **rest: Any) -> NodeView:
    """A Ready node of eight GPUs."""
    fields: dict[str, Any] = {
        "labels": {"gpu": "h100"},
        "allocatable": {"nvidia.com/gpu": 8, "cpu": 96_000, "memory": 1 << 40, "pods": 110},
        "ready": True,
        **rest,
    }
    return NodeView(name=name, uid=name, resource_version=str(version), **fields)


def pool_view(name: str = "h100", *, gpu: str | None = None, **selector: str) -> ObjectView:
    """A GpuPool of the nodes with these labels; `gpu` is what it says of its GPUs."""
    spec: dict[str, Any] = {"nodeSelector": selector or {"gpu": "h100"}}
    if gpu is not None:
        spec["hardware"] = {"gpu": gpu}
    return ObjectView(namespace="", name=name, uid=name, resource_version="1", spec=spec)


def queue_view(name: str = "research", *, gpus: int = 64) -> ObjectView:
    """A TrainingQueue with a quota in pool h100."""
    spec = {"quotas": [{"gpuPool": "h100", "nominalGpus": gpus}]}
    return ObjectView(namespace="", name=name, uid=name, resource_version="1", spec=spec)


def priority_view(name: str, value: int, *, default: bool = False) -> PriorityClassView:
    """A PriorityClass."""
    return PriorityClassView(
        name=name, uid=name, resource_version="1", value=value, global_default=default
    )


def assignment(*nodes: str, pool: str = "h100") -> dict[str, Any]:
    """A status with these places, generation 1."""
    places = {"gpuPool": pool, "nodes": list(nodes)}
    return {"generation": 1, "epoch": 1, "assignment": places, "phase": "Starting"}
