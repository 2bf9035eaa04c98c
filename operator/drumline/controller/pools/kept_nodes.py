"""Convert a node that is kept for a gang to a placeholder that protects it from autoscalers."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from drumline.controller.nodes.conversion import KARPENTER_POOL
from drumline.controller.pools.placeholder_pods import (
    owner_reference,
    placeholder_pod,
    placeholder_spec,
)
from drumline_api.base import LABEL_KEPT_NODE
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.kept_nodes import KeptNode
from drumline_scheduler.model.autoscaling import ZONE_LABEL

_HOSTNAME: Final = "kubernetes.io/hostname"
_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"


def keeping_pod_name(kept: KeptNode) -> str:
    """Return a name unique to gang, node and share, because a pod's requests cannot change."""
    stamp = f"{kept.gang.uid} {kept.node.name} {kept.share}"
    return f"keep-{sha256(stamp.encode()).hexdigest()[:12]}"


def keeping_pod(
    kept: KeptNode, *, spec: GpuPoolSpec, pool_uid: str, namespace: str, image: str
) -> dict[str, Any] | None:
    """Return the placeholder for a node.

    None if no label identifies the node, because the pod might request another node.

    Args:
        kept: the node and its gang.
        spec: spec of the node's pool.
        pool_uid: uid of the GpuPool, which owns the pod.
        namespace: namespace of the operator.
        image: image of the pod. It is never pulled.
    """
    where = _selector(kept.node.labels)
    if where is None:
        return None
    return placeholder_pod(
        name=keeping_pod_name(kept),
        namespace=namespace,
        labels={LABEL_KEPT_NODE: kept.gang.uid},
        annotations={},
        owner=owner_reference(kept.node.pool, uid=pool_uid),
        spec=placeholder_spec(kept.share, gang=kept.gang, spec=spec, image=image, where=where),
    )


def _selector(labels: Mapping[str, str]) -> dict[str, str] | None:
    """Return the labels by which an autoscaler identifies this node.

    Karpenter ignores pods that name a host or a field of a node (`IsRestrictedLabel`,
    `validateNodeSelectorTerm`). For its nodes, any free node of the same kind is kept. At least
    this one exists, so no other is added. cluster-autoscaler accepts the host name.
    """
    if KARPENTER_POOL in labels:
        keys = (KARPENTER_POOL, _INSTANCE_TYPE, ZONE_LABEL)
        return {key: labels[key] for key in keys if key in labels}
    return {_HOSTNAME: labels[_HOSTNAME]} if _HOSTNAME in labels else None
