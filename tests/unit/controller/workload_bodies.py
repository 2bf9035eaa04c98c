"""Jobs and JobSets that wait for the queue `research`, and their views."""

from __future__ import annotations

import json
from typing import Any

from drumline.kube.workload_views import WorkloadView
from drumline.kube.workloads import batch_job, job_set

QUEUE = {"drumline.dev/queue": "research"}


def template(gpus: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "1"}
    container = {"name": "c", "resources": {"limits": limits}}
    return {"metadata": {"labels": QUEUE}, "spec": {"containers": [container]}}


def required(expression: dict[str, Any]) -> dict[str, Any]:
    """An affinity that insists on this."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def a_job(*, gpus: int = 4, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "train", "namespace": "team", "uid": "j", "labels": dict(QUEUE)},
        "spec": {"suspend": True, "template": template(gpus), **spec},
    }


def a_job_set(*, replicas: int = 2) -> dict[str, Any]:
    """A driver without GPUs, and Jobs of two workers each."""
    workers = {"parallelism": 2, "completions": 2, "template": template(4)}
    parts = [
        {"name": "driver", "template": {"spec": {"template": template(0)}}},
        {"name": "workers", "replicas": replicas, "template": {"spec": workers}},
    ]
    metadata = {"name": "set", "namespace": "team", "uid": "s", "labels": dict(QUEUE)}
    return {"metadata": metadata, "spec": {"suspend": True, "replicatedJobs": parts}}


def job_set_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A JobSet of Jobs of one pod with four GPUs each, as far as the parts say nothing else."""
    body = a_job_set()
    body["spec"]["replicatedJobs"] = [
        {
            "name": f"part-{number}",
            "replicas": part.get("replicas"),
            "template": {"spec": {"template": template(4), **part.get("spec", {})}},
        }
        for number, part in enumerate(parts)
    ]
    for made, part in zip(body["spec"]["replicatedJobs"], parts, strict=True):
        made["template"]["spec"]["template"]["spec"] |= part.get("pod", {})
    return body


def view(body: dict[str, Any]) -> WorkloadView:
    decode = job_set if "replicatedJobs" in body["spec"] else batch_job
    return decode(json.dumps(body).encode())
