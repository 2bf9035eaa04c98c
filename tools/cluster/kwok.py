"""Fake nodes by the thousand: KWOK keeps them Ready and moves their pods through their phases.

A fake pod's address comes from loopback: whoever tries to reach it meets a closed port of
its own machine, never a real host.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.cluster.binaries import binary_path, module_dir
from tools.cluster.process import Process, spawn
from tools.cluster.rest import Api

NODES_PER_RACK = 10
GPUS_PER_FAKE_NODE = 8

_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
_COMPLETION = "pod/fast/pod-complete.yaml"
"""Ends each running pod whose owner is of a kind `Job`: of batch, or of Volcano."""
_WRITERS = 16


def start_kwok(
    folder: Path, *, kubeconfig: Path, netns: str | None, pods: str, completes_jobs: bool = True
) -> Process:
    """Start KWOK on the nodes that carry its annotation.

    Args:
        folder: the cluster's.
        kubeconfig: an administrator's.
        netns: namespace to run in.
        pods: their addresses.
        completes_jobs: whether it ends the running pods of Jobs.
    """
    return spawn(
        [
            binary_path("kwok"),
            f"--kubeconfig={kubeconfig}",
            f"--config={_stages_file(completes_jobs=completes_jobs)}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--cidr={pods}",
            "--node-ip=127.0.0.1",
            "--node-lease-duration-seconds=240",  # renewed four times in it
        ],
        folder=folder,
        role="kwok",
        netns=netns,
    )


def create_fake_nodes(
    kubeconfig: Path,
    *,
    count: int,
    gpus: int = GPUS_PER_FAKE_NODE,
    nodes_per_rack: int = NODES_PER_RACK,
    first: int = 0,
) -> list[str]:
    """Create nodes fake-<first>..., Ready; KWOK keeps them so.

    Returns:
        Their names.

    Raises:
        ApiStatusError: the API server refused one (409 where it exists).
    """
    nodes = [
        fake_node(index, gpus=gpus, nodes_per_rack=nodes_per_rack)
        for index in range(first, first + count)
    ]
    with ThreadPoolExecutor(_WRITERS) as pool:
        shares = [nodes[start::_WRITERS] for start in range(_WRITERS)]
        list(pool.map(lambda share: _create(kubeconfig, share), shares))
    return [node["metadata"]["name"] for node in nodes]


def fake_node(index: int, *, gpus: int, nodes_per_rack: int) -> dict[str, Any]:
    """The manifest of one fake node: 96 CPUs, 1 TiB, `gpus` H100s, in rack index // per rack."""
    name = f"fake-{index}"
    resources = {
        "cpu": "96",
        "memory": "1024Gi",
        "ephemeral-storage": "2Ti",
        "pods": "110",
        "nvidia.com/gpu": str(gpus),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "drumline.dev/rack": f"rack-{index // nodes_per_rack}",
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.count": str(gpus),
            },
        },
        # Ready from the start: KWOK would write the same, with one more request a node
        "status": {
            "phase": "Running",
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def ready_nodes(kubeconfig: Path) -> int:
    """How many nodes are Ready now."""
    with Api(kubeconfig) as api:
        nodes = api.request("GET", "/api/v1/nodes")["items"]
    return sum(1 for node in nodes if is_ready(node))


def is_ready(node: dict[str, Any]) -> bool:
    """Whether a node's Ready condition is True."""
    conditions = node["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _create(kubeconfig: Path, nodes: list[dict[str, Any]]) -> None:
    with Api(kubeconfig) as api:
        for node in nodes:
            api.request("POST", "/api/v1/nodes", node)


def _stages_file(*, completes_jobs: bool) -> Path:
    """KWOK's own stages, from its module, joined once beside its binary."""
    joined = binary_path("kwok").with_name("stages.yaml" if completes_jobs else "endless.yaml")
    if not joined.exists():
        source = module_dir("kwok") / "kustomize" / "stage"
        names = (*_STAGES, _COMPLETION) if completes_jobs else _STAGES
        staged = joined.with_suffix(".new")
        staged.write_text("\n---\n".join((source / name).read_text() for name in names))
        staged.rename(joined)
    return joined
