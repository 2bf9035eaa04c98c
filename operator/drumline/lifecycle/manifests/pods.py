"""Job -> pod manifests, in one pass over the input of each pod.

Pods are bound at creation (`spec.nodeName`), restricted (non-root, no capabilities, RuntimeDefault
seccomp) unless the administrator of their pool says otherwise (`pool_profile`), carry no
service-account token, and are never restarted by the kubelet: the agent or the operator decides
what a failure means.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from drumline.lifecycle.manifests.agents import with_agent
from drumline.lifecycle.manifests.compute_domains import with_channel
from drumline.lifecycle.manifests.containers import main_container
from drumline.lifecycle.manifests.init_containers import with_init_containers
from drumline.lifecycle.manifests.pod_input import PodInput, pod_inputs
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pool_profile import with_profile
from drumline.lifecycle.manifests.volumes import with_shared_claims
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline_api.base import (
    ANNOTATION_NODE,
    DEVICE_BINDER,
    LABEL_GENERATION,
    LABEL_INDEX,
    LABEL_ROLE,
)
from drumline_api.resource_names import GPU_TAINTS
from drumline_contract import host_name, pod_name

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
    """Return the pods of the members with these indices, each bound to its node. O(members).

    Args:
        job: has an assignment.
        indices: indices of the members.
        gpus: GPUs of their pool, and the additions of its administrator.
        settings: settings of the installation.
        own_budget: whether the job has a PodDisruptionBudget of its own whatever its size, as jobs
            of earlier versions have.

    Raises:
        ConfigError: the trainer's configuration is invalid.
    """
    pods = pod_inputs(job, indices=indices, gpus=gpus, settings=settings, own_budget=own_budget)
    return [_manifest(pod) for pod in pods]


def _manifest(pod: PodInput) -> Json:
    # 1. The container that trains, as the kubelet would start it, and its volumes.
    spec = main_container(pod)
    if pod.template is not None:
        # 2. The template's sidecars and init containers, which take over its image and home.
        spec = with_init_containers(spec, pod.template)
        # 3. The agent: it starts the command, or an init container waits for the gang.
        spec = with_agent(pod, spec, template=pod.template)
    if pod.channel:
        # 4. NVLink between the nodes of the gang.
        spec = with_channel(spec, pod.job)
    # 5. The pod around the containers: names, owner, node, rights.
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(pod),
        "spec": {**_pod_spec(pod), **spec},
    }
    # 6. The additions of the pool's administrator, last: nothing of a job can undo them.
    manifest = with_profile(manifest, pod.profile)
    return {**manifest, "spec": with_shared_claims(manifest["spec"])}


def _metadata(pod: PodInput) -> Json:
    job, member, template = pod.job, pod.member, pod.template
    return {
        "name": pod_name(job.name, member.index, member.pod_generation),
        "namespace": job.namespace,
        "labels": {
            **((template.labels if template else None) or {}),
            **pod.labels,
            LABEL_INDEX: str(member.index),
            LABEL_GENERATION: str(member.pod_generation),
            **({LABEL_ROLE: pod.role.role.name} if pod.role is not None else {}),
        },
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
            **((template.annotations if template else None) or {}),
            **pod.platform.get("annotations", {}),
            **({ANNOTATION_NODE: member.node} if pod.by_claims else {}),
        },
        "ownerReferences": [pod.owner],
    }


def _pod_spec(pod: PodInput) -> Json:
    # Claims must be allocated before the pod is bound, so the device binder binds it later.
    bound = {"schedulerName": DEVICE_BINDER} if pod.by_claims else {"nodeName": pod.member.node}
    return {
        **bound,
        "hostname": host_name(pod.job.name, pod.member.index),
        "restartPolicy": "Never",
        "priorityClassName": pod.settings.priority_class,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": pod.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            **_user(pod),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _tolerations(pod),
        **({"imagePullSecrets": pod.pull_secrets} if pod.pull_secrets else {}),
    }


def _user(pod: PodInput) -> Json:
    named = pod.template.run_as_user if pod.template else None
    groups = pod.template.supplemental_groups if pod.template else None
    user = pod.settings.user
    # An OpenShift constraint assigns user and group. Fixed ones would be rejected.
    if user is None:  # the group is root's, which owns no right in a pod, or the constraint's
        chosen = {} if named is None else {"runAsUser": named}
    else:
        chosen = {"runAsUser": named or user, "runAsGroup": user, "fsGroup": user}
    return {**chosen, **({"supplementalGroups": groups} if groups else {})}


def _tolerations(pod: PodInput) -> list[Json]:
    # Agents report a dead node within seconds. Other pods leave it as Kubernetes decides.
    gpus = [{"key": taint, "operator": "Exists"} for taint in GPU_TAINTS]
    has_agent = pod.role is None and (pod.template is None or pod.launch is not None)
    own = [toleration.as_json() for toleration in pod.job.spec.tolerations or []]
    silent_kubelet = _SILENT_KUBELET if has_agent else ()
    return [*gpus, *silent_kubelet, *own, *pod.platform.get("tolerations", [])]
