"""The child objects beside a job's pods: token Secret, and a large gang's PodDisruptionBudget.

Both have an owner reference and no finalizer: garbage collection deletes them with the job.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from drumline.lifecycle.model.job import Job
from drumline_api.base import (
    GROUP,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_NODES,
    TOKEN_SECRET_SUFFIX,
    VERSION,
)
from drumline_contract import sign

Json = dict[str, Any]

SHARED_BUDGET_NODES: Final = 8
"""Largest gang, in pods, that its namespace's budget protects.

The disruption controller writes a budget's status at every change of its pods. A small gang's
starts and ends cost fewer such writes than a budget of its own costs to make, count and delete; a
large gang's cost more, so it gets a budget once all its members run."""


def child_name(job: Job) -> str:
    """Return the prefix of the names of the job's Secret and its budgets.

    It contains the uid, so that children of an earlier job of the same name are never reused.
    """
    return f"{job.name}-{job.uid[:8]}"


def token_secret_name(job: Job) -> str:
    """Return the name of the Secret with the gang's token. Each signing key has its own Secret.

    The API refuses templates that name it.
    """
    key = job.status.signing_key
    name = child_name(job) if key is None else f"{child_name(job)}-{key}"
    return f"{name}{TOKEN_SECRET_SUFFIX}"


def was_created(job: Job, *, name: str) -> bool:
    """Return whether an earlier start has created a child of this name, as far as is known.

    The operator cannot read most children. And where a quota is full, the API server refuses a
    create before it looks for the name, so its answer does not show the child either. A start that
    failed for the child names it in the status.
    """
    return (job.status.generation or 1) > 1 and name not in (job.status.incident or "")


def owner_reference(job: Job) -> Json:
    """Return the job as controlling owner. The child does not block the job's deletion."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def job_token(signing_key: bytes, job_uid: str) -> bytes:
    """Return the token with which a job's agents authenticate their operator.

    Derived, not stored: after a restart the operator needs no right to read Secrets.
    """
    return sign(signing_key, b"job-token", job_uid.encode()).encode()


def token_secret(job: Job, token: bytes) -> Json:
    """Return the Secret that the job's pods mount."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**_metadata(job), "name": token_secret_name(job)},
        "type": "Opaque",
        "immutable": True,
        "data": {"token": base64.b64encode(token).decode()},
    }


def disruption_budget(job: Job, *, evictable: int = 0) -> Json:
    """Return the budget that blocks drains: the eviction of one member would stop them all.

    A denied eviction leaves no trace anywhere, so nothing could answer it. Therefore the budget
    lets those members go whose nodes announce their end, a cordon included, once they have saved:
    the evicted pod shows that the drain has come (`DisruptionTarget`), and its agent saves again.

    `minAvailable` is a number, because `maxUnavailable` needs a scale subresource on the owner. A
    job may resume from a suspension with another size, and children are only created, never
    updated: so there is one budget for each size, which selects the pods of that size, because a
    pod with two budgets cannot be evicted at all.

    Args:
        job: has an assignment if members may be evicted.
        evictable: number of members that a drain may evict.
    """
    # The size is part of the selector and of the name: one budget for each size.
    nodes = str(job.wanted)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {**_metadata(job), "name": f"{child_name(job)}-{nodes}"},
        "spec": {
            "minAvailable": max(0, job.members - evictable) if evictable else job.wanted,
            "selector": {"matchLabels": {LABEL_JOB_UID: job.uid, LABEL_NODES: nodes}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _metadata(job: Job) -> Json:
    return {
        "name": child_name(job),
        "namespace": job.namespace,
        "labels": {LABEL_JOB: job.name, LABEL_JOB_UID: job.uid},
        "ownerReferences": [owner_reference(job)],
    }
