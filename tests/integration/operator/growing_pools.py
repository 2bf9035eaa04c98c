"""Corners without nodes: a GpuPool that may grow, a queue, a namespace."""

from __future__ import annotations

from drumline_api.base import LABEL_KEPT_NODE
from tests.integration.operator.cluster_autoscaler import NODE_GPUS
from tests.kube import Json, Kube

LABEL = "drumline.test/site"
"""What the nodes of a corner carry, with the corner's name."""


def create_growing_pool(
    kube: Kube,
    name: str,
    *,
    max_nodes: int,
    quota: int,
    timeout: int,
    taints: tuple[Json, ...] = (),
    mode: str = "Placeholders",
    zones: tuple[str, ...] = (),
) -> None:
    """A namespace, a pool without nodes that may grow, and a queue of that name."""
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "GpuPool",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {LABEL: name},
                "autoscaling": {
                    "mode": mode,
                    "maxNodes": max_nodes,
                    "timeoutSeconds": timeout,
                    **({"zones": list(zones)} if zones else {}),
                    "node": {
                        "allocatable": {
                            "nvidia.com/gpu": NODE_GPUS,
                            "cpu": 90,
                            "memory": "1000Gi",
                            "ephemeral-storage": "1Ti",
                        },
                        **({"taints": list(taints)} if taints else {}),
                    },
                },
            },
        }
    )
    kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingQueue",
            "metadata": {"name": name},
            "spec": {"quotas": [{"gpuPool": name, "nominalGpus": quota}]},
        }
    )


def keeping_pods(site: str, pods: list[Json]) -> list[Json]:
    """Those of them that stand for free nodes of that corner which are kept."""
    return [
        pod
        for pod in pods
        if LABEL_KEPT_NODE in pod["metadata"].get("labels", {})
        and pod["spec"]["nodeSelector"].get(LABEL) == site
    ]


def delete_growing_pool(kube: Kube, name: str) -> None:
    """With its jobs; what an autoscaler made it takes away itself."""
    for job in kube.list("trainingjobs", name):
        kube.delete("trainingjobs", job["metadata"]["name"], name)
    kube.delete("gpupools", name)
    kube.delete("trainingqueues", name)
