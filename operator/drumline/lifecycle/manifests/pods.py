"""Job -> pod manifests: metadata, scheduling and security. The containers are in `containers`.

Pods are bound at creation (`spec.nodeName`), restricted (non-root, no capabilities, RuntimeDefault
seccomp) unless the administrator of their pool says otherwise (`pool_profile`), carry no
service-account token, and are never restarted by the kubelet: the agent or the operator decides
what a failure means.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from drumline.api.base import (
    ANNOTATION_NODE,
    DEVICE_BINDER,
    LABEL_GANG_NETWORK,
    LABEL_GENERATION,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_NODES,
    LABEL_PROTECTED,
    LABEL_QUEUE,
    LABEL_ROLE,
)
from drumline.api.podtemplate import PodTemplate
from drumline.api.resource_names import GPU_TAINTS
from drumline.lifecycle.manifests.agents import grace_seconds
from drumline.lifecycle.manifests.children import owner_reference, shares_budget
from drumline.lifecycle.manifests.compute_domains import with_channel
from drumline.lifecycle.manifests.containers import containers_of
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pool_profile import with_profile
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, members_of
from drumline.lifecycle.model.roles import has_channel, role_pod
from drumline_trainer.contract import (
    host_name,
    pod_name,
)

Json = dict[str, Any]

_SILENT_KUBELET = tuple(
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
    for state in ("not-ready", "unreachable")
)
"""Without these Kubernetes evicts after five minutes. A kubelet may be dead while its pods train;
if the pods are dead too, their peers report it within seconds."""


def pod_manifests(
    job: Job,
    *,
    indices: Collection[int],
    gpus: PoolGpus,
    settings: PodSettings,
    own_budget: bool = False,
) -> list[Json]:
    """The pods of the members with these indices, each bound to its node. O(members).

    Args:
        job: has an assignment.
        indices: of the members.
        gpus: what their pool says of its GPUs and its pods.
        settings: what the platform decides.
        own_budget: whether the job has a budget of its own whatever its size, as it had in
            earlier versions.
    """
    chosen = frozenset(indices)
    labels = _labels(job, protected=shares_budget(job) and not own_budget)
    return [
        with_profile(_manifest(job, member, labels, gpus=gpus, settings=settings), gpus.profile)
        for member in members_of(job.status)
        if member.index in chosen
    ]


def _labels(job: Job, *, protected: bool) -> dict[str, str]:
    """What the pods of all members are labelled with."""
    return {
        LABEL_JOB: job.name,
        LABEL_JOB_UID: job.uid,
        LABEL_NODES: str(job.wanted),
        LABEL_QUEUE: job.spec.queue,
        **({LABEL_PROTECTED: "true"} if protected else {}),
        **({LABEL_GANG_NETWORK: "true"} if job.has_agents else {}),
    }


def _manifest(
    job: Job,
    member: GangMember,
    labels: dict[str, str],
    *,
    gpus: PoolGpus,
    settings: PodSettings,
) -> Json:
    template, role = job.spec.template, role_pod(job.spec, member.index)
    channel = has_channel(job.spec, member.index)
    by_claims = gpus.by_claims or channel
    containers = containers_of(job, member, gpus=gpus, settings=settings)
    extra = settings.trainer_pod if job.runs_trainer else {}
    annotations = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        **((template.annotations if template else None) or {}),
        **extra.get("annotations", {}),
        **({ANNOTATION_NODE: member.node} if by_claims else {}),
    }
    bound = {"schedulerName": DEVICE_BINDER} if by_claims else {"nodeName": member.node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job.name, member.index, member.pod_generation),
            "namespace": job.namespace,
            "labels": {
                **((template.labels if template else None) or {}),
                **labels,
                LABEL_INDEX: str(member.index),
                LABEL_GENERATION: str(member.pod_generation),
                **({LABEL_ROLE: role.role.name} if role is not None else {}),
            },
            "annotations": annotations,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            **bound,
            "hostname": host_name(job.name, member.index),
            "restartPolicy": "Never",
            "priorityClassName": settings.priority_class,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace_seconds(job, settings),
            "securityContext": {
                "runAsNonRoot": True,
                **_user(template, settings.user),
                **_supplemental_groups(template),
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": _tolerations(job, extra, has_agent=job.is_supervised and role is None),
            **(with_channel(containers, job) if channel else containers),
        },
    }


def _user(template: PodTemplate | None, user: int | None) -> Json:
    named = template.run_as_user if template else None
    if user is None:  # the group is root's, which owns no right in a pod, or the constraint's
        return {} if named is None else {"runAsUser": named}
    return {"runAsUser": named or user, "runAsGroup": user, "fsGroup": user}


def _supplemental_groups(template: PodTemplate | None) -> Json:
    groups = template.supplemental_groups if template else None
    return {"supplementalGroups": groups} if groups else {}


def _tolerations(job: Job, extra: Json, *, has_agent: bool) -> list[Json]:
    own = [
        toleration.model_dump(by_alias=True, exclude_none=True)
        for toleration in job.spec.tolerations or []
    ]
    gpus = [{"key": taint, "operator": "Exists"} for taint in GPU_TAINTS]
    silent_kubelet = _SILENT_KUBELET if has_agent else ()
    return [*gpus, *silent_kubelet, *own, *extra.get("tolerations", [])]
