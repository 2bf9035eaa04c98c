"""The `kind` provider: nodes are containers of a Docker that answers.

Not run where this repository's own tests ran: those machines have no Docker. Real nodes and images
are kind's business here; GPUs are written into the nodes' status, where the kubelet leaves them
alone. KWOK is not started: the `native` provider needs neither root nor Docker for that.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tools.cluster.binaries import ensure_binaries
from tools.cluster.context import IMAGES, REPOSITORY, write_context
from tools.cluster.model import Cluster, ClusterError, ClusterSpec, NodeInfo, Provider
from tools.cluster.progress import Progress


class Kind:
    """A cluster of `kind`, with one control-plane node that runs no jobs."""

    def missing(self, spec: ClusterSpec) -> str | None:
        """Docker has to answer."""
        if spec.fake_nodes or spec.kwok:
            return "fake nodes come with `--provider native`"
        if shutil.which("docker") is None:
            return "kind takes Docker, and there is no `docker` command"
        if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
            return "kind takes Docker, and the Docker engine does not answer"
        return None

    def start(self, spec: ClusterSpec, *, progress: Progress) -> Cluster:
        """Create the cluster, label its workers, load the images."""
        binaries = ensure_binaries(["kind", "kubectl"], say=progress.say)
        kubeconfig = spec.folder / "kubeconfig"
        config = spec.folder / "kind.json"
        config.write_text(json.dumps(kind_config(spec), indent=1))
        with progress.step(f"kind: {spec.nodes} nodes"):
            create = [binaries["kind"], "create", "cluster", f"--name={spec.name}", "--wait=120s"]
            _run(*create, f"--config={config}", f"--kubeconfig={kubeconfig}")
            nodes = tuple(_node(spec, index) for index in range(spec.nodes))
            for node in nodes:
                _give_gpus(node, kubectl=binaries["kubectl"], kubeconfig=kubeconfig)
        cluster = Cluster(
            name=spec.name,
            provider=Provider.KIND,
            kubeconfig=kubeconfig,
            folder=spec.folder,
            nodes=nodes,
        )
        if nodes:
            self.load_images(cluster, progress=progress)
        return cluster

    def runs(self, cluster: Cluster) -> bool:
        """kind lists it."""
        kind = ensure_binaries(["kind"], say=print)["kind"]
        return cluster.name in _run(kind, "get", "clusters").splitlines()

    def load_images(self, cluster: Cluster, *, progress: Progress) -> None:
        """Built by Docker from the same Dockerfiles, on Docker's own Python base image."""
        kind = ensure_binaries(["kind"], say=progress.say)["kind"]
        for image in IMAGES:
            with (
                progress.step(f"image {image}"),
                tempfile.TemporaryDirectory(dir=cluster.folder) as scratch,
            ):
                context = Path(scratch) / image
                write_context(image, context)
                tag = f"drumline/{image}:dev"
                dockerfile = REPOSITORY / "docker" / f"{image}.Dockerfile"
                _run("docker", "build", f"--file={dockerfile}", f"--tag={tag}", context)
                _run(kind, "load", "docker-image", tag, f"--name={cluster.name}")

    def remove(self, name: str) -> None:
        """Delete the cluster's containers; no error when there are none."""
        kind = ensure_binaries(["kind"], say=print)["kind"]
        _run(kind, "delete", "cluster", f"--name={name}")


def kind_config(spec: ClusterSpec) -> dict[str, Any]:
    """kind's own configuration: racks as labels, this machine's folders at their own paths."""
    mounts = [
        {"hostPath": str(folder), "containerPath": str(folder)}
        for folder in (REPOSITORY, Path(tempfile.gettempdir()))
    ]
    workers = [
        {
            "role": "worker",
            "labels": {
                "drumline.dev/rack": spec.rack_of(index),
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.count": str(spec.gpus_per_node),
            },
            "extraMounts": mounts,
        }
        for index in range(spec.nodes)
    ]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, *workers],
    }


def _node(spec: ClusterSpec, index: int) -> NodeInfo:
    name = f"{spec.name}-worker{index + 1 if index else ''}"
    address = _run(
        "docker", "inspect", "--format={{.NetworkSettings.Networks.kind.IPAddress}}", name
    )
    return NodeInfo(
        name=name,
        address=address.strip(),
        pod_cidr="",
        rack=spec.rack_of(index),
        gpus=spec.gpus_per_node,
        netns="",
        folder=spec.folder,
    )


def _give_gpus(node: NodeInfo, *, kubectl: Path, kubeconfig: Path) -> None:
    gpus = {"nvidia.com/gpu": str(node.gpus)}
    patch = json.dumps({"status": {"capacity": gpus, "allocatable": gpus}})
    access = f"--kubeconfig={kubeconfig}"
    _run(kubectl, access, "patch", "node", node.name, "--subresource=status", f"--patch={patch}")


def _run(*command: str | Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(words[:3])}: {done.stderr.strip()[-800:]}")
    return done.stdout
