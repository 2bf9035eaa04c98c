"""A node that is kept for a gang -> a placeholder that keeps autoscalers from taking it away."""

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
    """Another one for each gang, node and share: what a pod asks for cannot change."""
    stamp = f"{kept.gang.uid} {kept.node.name} {kept.share}"
    return f"keep-{sha256(stamp.encode()).hexdigest()[:12]}"


def keeping_pod(
    kept: KeptNode, *, spec: GpuPoolSpec, pool_uid: str, namespace: str, image: str
) -> dict[str, Any] | None:
    """The placeholder for a node; None: nothing names the node, and it might ask for another one.

    Args:
        kept: the node, and for whom it is.
        spec: its pool.
        pool_uid: of the GpuPool, which owns the pod.
        namespace: the operator's.
        image: named, never pulled.
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
    """By which an autoscaler thinks of this node.

    Karpenter passes over pods that name a host, or a field of a node (`IsRestrictedLabel`,
    `validateNodeSelectorTerm`), so of its nodes any that is as free and of the same kind is kept;
    there is at least this one, so no other is added. cluster-autoscaler takes the name.
    """
    if KARPENTER_POOL in labels:
        keys = (KARPENTER_POOL, _INSTANCE_TYPE, ZONE_LABEL)
        return {key: labels[key] for key in keys if key in labels}
    return {_HOSTNAME: labels[_HOSTNAME]} if _HOSTNAME in labels else None
