"""A double of an autoscaler: it adds fake nodes for pods that say they are unschedulable.

It plays what was measured of cluster-autoscaler 1.36 and Karpenter 1.15: only pods without a node
and with PodScheduled=False, reason Unschedulable, count, whoever is to schedule them; it packs them
into what is free on the nodes that are there before it adds any; it is not all-or-nothing; what no
pod needs goes. Each step is taken when a test says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.cluster.kwok import fake_node
from tests.kube import Json, Kube

LABEL = "drumline.test/site"
"""What the nodes of a corner carry, with the corner's name."""

NAMESPACE = "drumline-system"
GPU = "nvidia.com/gpu"
NODE_GPUS = 8


@dataclass(kw_only=True)
class AutoscalerDouble:
    """Adds nodes with the labels of one pool, `most` of them at most."""

    kube: Kube
    labels: dict[str, str]
    first: int
    most: int
    nodes: list[str] = field(default_factory=list[str])
    added: int = 0

    def placeholders(self) -> list[Json]:
        """The pods that it would add nodes for."""
        return [pod for pod in self.kube.list("pods", NAMESPACE) if self._is_mine(pod)]

    def wait_placeholders(self, count: int, *, seconds: float = 60) -> list[Json]:
        """Until so many pods ask for nodes."""
        return self.kube.wait_all(
            "pods",
            NAMESPACE,
            lambda pods: sum(map(self._is_mine, pods)) == count,
            seconds=seconds,
        )

    def scale_up(self) -> int:
        """Add nodes for the pods that fit on none of those that are there; returns how many."""
        free = dict.fromkeys(self.nodes, NODE_GPUS)
        for pod in self.kube.list("pods"):
            name = pod["spec"].get("nodeName")
            if name in free and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                free[name] -= gpus_of(pod)
        before = self.added
        for pod in sorted(self.placeholders(), key=gpus_of, reverse=True):
            fits = next((name for name, room in free.items() if room >= gpus_of(pod)), None)
            if fits is None and len(self.nodes) < self.most:
                fits = self._add()
                free[fits] = NODE_GPUS
            if fits is not None:
                free[fits] -= gpus_of(pod)
        return self.added - before

    def scale_down(self) -> None:
        """Remove the nodes that no pod needs, those that ask for nodes counted."""
        assert not self.placeholders()
        used = {pod["spec"].get("nodeName") for pod in self.kube.list("pods")}
        for name in [name for name in self.nodes if name not in used]:
            self.kube.delete("nodes", name)
            self.nodes.remove(name)

    def _add(self) -> str:
        node = fake_node(self.first + self.added, gpus=NODE_GPUS, nodes_per_rack=100)
        node["metadata"]["labels"].update(self.labels)
        self.kube.create(node)
        self.added += 1
        self.nodes.append(node["metadata"]["name"])
        return node["metadata"]["name"]

    def _is_mine(self, pod: Json) -> bool:
        conditions = pod["status"].get("conditions") or []
        return (
            "nodeName" not in pod["spec"]
            and "nominatedNodeName" not in pod["status"]
            and pod["spec"].get("nodeSelector", {}).items() >= self.labels.items()
            and any(
                (each["type"], each["status"], each.get("reason"))
                == ("PodScheduled", "False", "Unschedulable")
                for each in conditions
            )
        )


def gpus_of(pod: Json) -> int:
    """What its containers request together."""
    return sum(
        int(container.get("resources", {}).get("requests", {}).get(GPU, "0"))
        for container in pod["spec"]["containers"]
    )


def create_growing_pool(
    kube: Kube,
    name: str,
    *,
    max_nodes: int,
    quota: int,
    timeout: int,
    taints: tuple[Json, ...] = (),
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
                    "mode": "Placeholders",
                    "maxNodes": max_nodes,
                    "timeoutSeconds": timeout,
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


def delete_growing_pool(kube: Kube, name: str) -> None:
    """With its jobs; what an autoscaler made it takes away itself."""
    for job in kube.list("trainingjobs", name):
        kube.delete("trainingjobs", job["metadata"]["name"], name)
    kube.delete("gpupools", name)
    kube.delete("trainingqueues", name)
