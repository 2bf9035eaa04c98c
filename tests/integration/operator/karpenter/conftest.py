"""Corners whose nodes the real Karpenter makes and takes away."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.operator.cluster_autoscaler import NAMESPACE, NODE_GPUS
from tests.integration.operator.conftest import Site
from tests.integration.operator.growing_pools import (
    LABEL,
    create_growing_pool,
    delete_growing_pool,
)
from tests.integration.operator.karpenter.program import (
    ensure_karpenter,
    install_crds,
    instance_type,
    said,
    start_karpenter,
)
from tests.kube import Json, Kube
from tools.cluster import Cluster

BOOT_SECONDS = 5
ZONES = ("zone-a", "zone-b")
PATIENCE_SECONDS = 240
"""For a whole scale-up or the way back, beside anything else that runs on the machine."""
TAINT: Json = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
_CPU_TYPE: Json = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"}
_GPU_TYPE: Json = {
    "cpu": "96",
    "memory": "1100Gi",
    "ephemeral-storage": "2Ti",
    "pods": "110",
    "nvidia.com/gpu": str(NODE_GPUS),
}
_numbers = itertools.count()


# the cheap one shows whether a placeholder's GPUs count
TYPES = [
    instance_type("cpu-4", _CPU_TYPE, price=0.2, zones=ZONES),
    instance_type("gpu-h100-8", _GPU_TYPE, price=58.8, zones=ZONES),
]


@dataclass(frozen=True, kw_only=True)
class KarpenterSite:
    """A corner with a NodePool of its own."""

    site: Site
    folder: Path

    @property
    def labels(self) -> str:
        """Of its nodes."""
        return f"{LABEL}={self.site.namespace}"

    def nodes(self) -> list[Json]:
        """Those that are there."""
        return self.site.kube.list("nodes", labels=self.labels)

    def wait_nodes(self, count: int) -> list[Json]:
        """Until so many are there."""
        return self.site.kube.wait_all(
            "nodes",
            None,
            lambda nodes: len(nodes) == count,
            labels=self.labels,
            seconds=PATIENCE_SECONDS,
        )

    def patch_pool(self, spec: Json) -> None:
        """Change its NodePool."""
        self.site.kube.patch("nodepools", self.site.namespace, {"spec": spec})

    def wait_blocked(self, nodes: set[str], *, by: str) -> None:
        """Until Karpenter says of one of these nodes that it may not disrupt it, and why."""

        def is_blocked(event: Json) -> bool:
            about = event["involvedObject"].get("name")
            return (
                event["reason"] == "DisruptionBlocked" and about in nodes and by in event["message"]
            )

        self.site.kube.wait_all(
            "events", None, lambda events: any(map(is_blocked, events)), seconds=PATIENCE_SECONDS
        )

    def wait_placeholders(self, count: int) -> None:
        """Until so many pods of this corner's jobs ask for nodes."""

        def is_ours(pod: Json) -> bool:
            return pod["spec"].get("nodeSelector", {}).get(LABEL) == self.site.namespace

        self.site.kube.wait_all(
            "pods",
            NAMESPACE,
            lambda pods: sum(map(is_ours, pods)) == count,
            seconds=PATIENCE_SECONDS,
        )

    @property
    def created(self) -> int:
        """How many nodes Karpenter has ordered for this corner so far."""
        lines = said(self.folder, "created nodeclaim")
        return sum(line["NodePool"]["name"] == self.site.namespace for line in lines)


@pytest.fixture(scope="session")
def karpenter(control_plane: Cluster, api: Kube) -> Path:
    """Karpenter runs; the folder of its log."""
    folder = ensure_karpenter(say=print)
    install_crds(api, folder)
    api.ensure(
        {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": "default"},
            "spec": {"nodeRegistrationDelay": f"{BOOT_SECONDS}s"},
        }
    )
    start_karpenter(
        folder / "karpenter",
        folder=control_plane.folder,
        kubeconfig=control_plane.kubeconfig,
        types=TYPES,
    )
    return control_plane.folder


def is_ready(pool: Json | None) -> bool:
    conditions: list[Json] = (pool or {}).get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def node_pool(
    name: str, *, nodes: int, startup_taints: tuple[Json, ...], expire_after: str
) -> Json:
    """GPU nodes of that corner, `nodes` at most, removed five seconds after they are empty."""
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {"labels": {LABEL: name}},
                "spec": {
                    "nodeClassRef": {
                        "group": "karpenter.kwok.sh",
                        "kind": "KWOKNodeClass",
                        "name": "default",
                    },
                    "requirements": [
                        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
                    ],
                    "taints": [TAINT],
                    "startupTaints": list(startup_taints),
                    "expireAfter": expire_after,
                },
            },
            "limits": limits(nodes),
            "disruption": {
                "consolidationPolicy": "WhenEmptyOrUnderutilized",
                "consolidateAfter": "5s",
                "budgets": [{"nodes": "100%"}],
            },
        },
    }


def limits(nodes: int) -> Json:
    """Of a NodePool with as many nodes at most."""
    return {"nvidia.com/gpu": nodes * NODE_GPUS}


@contextmanager
def a_karpenter_site(
    api: Kube,
    folder: Path,
    *,
    nodes: int,
    max_nodes: int,
    quota: int,
    timeout: int,
    startup_taints: tuple[Json, ...],
    expire_after: str,
) -> Generator[KarpenterSite]:
    name = f"karpenter-{next(_numbers)}"
    api.create(
        node_pool(name, nodes=nodes, startup_taints=startup_taints, expire_after=expire_after)
    )
    api.wait("nodepools", name, None, is_ready)
    create_growing_pool(
        api, name, max_nodes=max_nodes, quota=quota, timeout=timeout, taints=(TAINT,)
    )
    site = Site(kube=api, namespace=name, pool=name, queue=name, nodes=())
    try:
        yield KarpenterSite(site=site, folder=folder)
    finally:
        delete_growing_pool(api, name)
        api.delete("nodepools", name)


@pytest.fixture
def grow(api: Kube, karpenter: Path) -> Iterator[Callable[..., KarpenterSite]]:
    """Makes the test's corner."""
    with ExitStack() as stack:

        def make(
            *,
            nodes: int = 100,
            max_nodes: int = 100,
            quota: int = 256,
            timeout: int = 600,
            startup_taints: tuple[Json, ...] = (),
            expire_after: str = "Never",
        ) -> KarpenterSite:
            return stack.enter_context(
                a_karpenter_site(
                    api,
                    karpenter,
                    nodes=nodes,
                    max_nodes=max_nodes,
                    quota=quota,
                    timeout=timeout,
                    startup_taints=startup_taints,
                    expire_after=expire_after,
                )
            )

        yield make
