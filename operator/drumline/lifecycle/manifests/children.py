"""The three objects beside a job's pods: token Secret, PodDisruptionBudget, NetworkPolicy.

All carry an owner reference and no finalizer: they die with the job by garbage collection.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from drumline.api.base import GROUP, LABEL_JOB, LABEL_JOB_UID, LABEL_NODES, VERSION
from drumline.lifecycle.model.job import Job
from drumline_trainer.contract import AGENT_PORT, sign

Json = dict[str, Any]


def child_name(job: Job) -> str:
    """Name of the job's children; the budget's goes on with its size.

    It carries the uid: a namesake's are never mistaken.
    """
    return f"{job.name}-{job.uid[:8]}"


def owner_reference(job: Job) -> Json:
    """The job as controlling owner; it does not block the job's deletion."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def job_token(signing_key: bytes, job_uid: str) -> bytes:
    """The token by which a job's agents know their operator.

    Derived, not stored: after a restart the operator signs on without the right to read Secrets.
    """
    return sign(signing_key, b"job-token", job_uid.encode()).encode()


def token_secret(job: Job, token: bytes) -> Json:
    """The Secret its pods mount."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job),
        "type": "Opaque",
        "immutable": True,
        "data": {"token": base64.b64encode(token).decode()},
    }


def disruption_budget(job: Job) -> Json:
    """No member of a gang leaves by a drain while the job runs: all would stop.

    `minAvailable` as a number: `maxUnavailable` needs a scale subresource on the owner. A job may
    come back from a suspension with another size, and children are only ever created: so there is
    one budget a size, and each selects the pods of its own, as no pod with two can be evicted.
    """
    nodes = str(job.spec.nodes)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {**_metadata(job), "name": f"{child_name(job)}-{nodes}"},
        "spec": {
            "minAvailable": job.spec.nodes,
            "selector": {"matchLabels": {LABEL_JOB_UID: job.uid, LABEL_NODES: nodes}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def network_policy(job: Job, *, operator_namespace: str, metrics_from: Sequence[Json] = ()) -> Json:
    """Into the pods of a gang: its own members on every port, the operator on the agent's.

    `metrics_from` are NetworkPolicyPeers that may reach the agent's port too: who scrapes.

    Traffic of host-network pods and RDMA is outside what a NetworkPolicy covers.
    """
    gang = {"matchLabels": {LABEL_JOB_UID: job.uid}}
    operator = {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(job),
        "spec": {
            "podSelector": gang,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": gang}]},
                {
                    "from": [{"namespaceSelector": operator}, *metrics_from],
                    "ports": [{"protocol": "TCP", "port": AGENT_PORT}],
                },
            ],
        },
    }


def _metadata(job: Job) -> Json:
    return {
        "name": child_name(job),
        "namespace": job.namespace,
        "labels": {LABEL_JOB: job.name, LABEL_JOB_UID: job.uid},
        "ownerReferences": [owner_reference(job)],
    }
