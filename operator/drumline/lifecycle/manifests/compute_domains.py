"""NVLink between the nodes of a job: its ComputeDomain, and the pods' claims of channels.

NVIDIA's DRA driver makes a ResourceClaimTemplate for each ComputeDomain, Kubernetes a claim from it
for each pod that names the template, and the driver's daemons follow the pods. So a domain has no
size, and a pod that is replaced joins it from wherever it is placed.
"""

from __future__ import annotations

from typing import Any

from drumline.lifecycle.manifests.children import child_name, owner_reference
from drumline.lifecycle.model.job import Job
from drumline_api.base import LABEL_JOB, LABEL_JOB_UID, POD_CLAIM_CHANNEL

Json = dict[str, Any]


def compute_domain(job: Job) -> Json:
    """Return the job's ComputeDomain; garbage collection deletes it with the job."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {
            "name": child_name(job),
            "namespace": job.namespace,
            "labels": {LABEL_JOB: job.name, LABEL_JOB_UID: job.uid},
            "ownerReferences": [owner_reference(job)],
        },
        # numNodes: 0 is the driver's advice; nobody waits for all nodes, as NCCL does that
        "spec": {
            "numNodes": 0,
            "channel": {"resourceClaimTemplate": {"name": _template_name(job)}},
        },
    }


def with_channel(spec: Json, job: Job) -> Json:
    """Add the claim of a channel that the first container uses."""
    trainer, *sidecars = spec["containers"]
    resources = {**trainer["resources"], "claims": [{"name": POD_CLAIM_CHANNEL}]}
    claim = {"name": POD_CLAIM_CHANNEL, "resourceClaimTemplateName": _template_name(job)}
    return {
        **spec,
        "containers": [{**trainer, "resources": resources}, *sidecars],
        "resourceClaims": [claim],
    }


def _template_name(job: Job) -> str:
    return f"{child_name(job)}-channel"
