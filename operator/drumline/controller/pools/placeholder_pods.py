"""Placeholders: pods that no scheduler binds, which show a waiting gang to autoscalers.

Karpenter and cluster-autoscaler add nodes for a pod whose condition PodScheduled is False with the
reason Unschedulable, whatever its scheduler is. They do not remove nodes on which it would fit. So
a placeholder has the requests, tolerations and selectors of the gang's pods, and a scheduler that
does not exist. It has no nominatedNodeName, which would hide it from both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drumline.controller.informers.volumes import ATTACHABLE
from drumline.kube.kinds import GPU_POOLS
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.base import RESOURCE_CHANNEL, TAINT_PROMISED
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.model import Gang, Toleration
from drumline_scheduler.model.autoscaling import ZONE_LABEL
from drumline_scheduler.resources import Resources

SCHEDULER_NAME: Final = "drumline-placeholder"
"""Name of a scheduler that does not exist."""

Json = dict[str, Any]
_TOLERATES_PROMISES: Final[Json] = {"key": TAINT_PROMISED, "operator": "Exists"}
"""A promised node already serves the gang, so an autoscaler must not add another node for it."""


def placeholder_pod(
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owner: Json,
    spec: Json,
) -> Json:
    """Return a placeholder. Autoscalers do not remove the node on which they expect it.

    Args:
        name: name of the Pod.
        namespace: the operator's namespace.
        labels: labels by which the operator finds it.
        annotations: the demand that it stands for.
        owner: owner reference of the GpuPool.
        spec: scheduling fields and requests.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels),
            "annotations": {
                **annotations,
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def owner_reference(pool: str, *, uid: str) -> Json:
    """Return the reference by which a GpuPool owns the objects that ask for its nodes."""
    return {
        "apiVersion": GPU_POOLS.api_version,
        "kind": GPU_POOLS.kind,
        "name": pool,
        "uid": uid,
        "controller": True,
    }


def unschedulable(message: str, *, now: float) -> Json:
    """Return the status that makes autoscalers see a pod without a node."""
    return {
        "status": {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                    "lastTransitionTime": timestamp(now),
                }
            ]
        }
    }


def zone_selector(zone: str) -> dict[str, str]:
    """Return the selector of nodes in this zone. '' selects any zone."""
    return {ZONE_LABEL: zone} if zone else {}


def placeholder_spec(
    share: Resources, *, gang: Gang, spec: GpuPoolSpec, image: str, where: Mapping[str, str]
) -> Json:
    """Return the spec of a pod that takes a share of a node.

    Args:
        share: resources that the gang takes of the node.
        gang: the gang.
        spec: spec of the node's pool.
        image: image of the pod. It is never pulled.
        where: labels of the node besides those of the pool.
    """
    affinity = _affinity(gang)
    # The restricted pod security standard: the operator's namespace may enforce it.
    return {
        "schedulerName": SCHEDULER_NAME,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {**gang.selector, **spec.node_selector, **where},
        "tolerations": [*(_toleration(each) for each in gang.tolerations), _TOLERATES_PROMISES],
        **({"affinity": affinity} if affinity else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "placeholder",
                "image": image,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
                "resources": _resources(share, gpu_resource=spec.gpu_resource),
            }
        ],
    }


def _resources(share: Resources, *, gpu_resource: str) -> Json:
    amounts = {
        "cpu": f"{share.cpu_millis}m",
        "memory": str(share.memory_bytes),
        "ephemeral-storage": str(share.ephemeral_bytes),
    }
    # Extended resources must have equal requests and limits.
    # No node lists what the operator counts itself: volumes and channels.
    extended = {
        name: str(n)
        for name, n in share.extended
        if name != RESOURCE_CHANNEL and not name.startswith(ATTACHABLE)
    }
    devices = {gpu_resource: str(share.gpus), **extended}
    asked = {name: text for name, text in {**amounts, **devices}.items() if text not in ("0", "0m")}
    return {"requests": asked, "limits": {name: asked[name] for name in devices if name in asked}}


def _toleration(toleration: Toleration) -> Json:
    parts = {
        "key": toleration.key,
        "operator": str(toleration.operator),
        "value": toleration.value,
        "effect": str(toleration.effect) if toleration.effect else "",
    }
    return {name: text for name, text in parts.items() if text}


def _affinity(gang: Gang) -> Json:
    terms = [
        {
            "matchExpressions": [
                {
                    "key": each.key,
                    "operator": str(each.operator),
                    **({"values": list(each.values)} if each.values else {}),
                }
                for each in term
            ]
        }
        for term in gang.affinity
    ]
    if not terms:
        return {}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}
