"""The `existing` provider: a cluster that somebody else made, by its kubeconfig.

It is used as it is: no node, no image and no component is added, and nothing is ever deleted but
this tool's own note of it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.cluster.binaries import ensure_binaries
from tools.cluster.model import Cluster, ClusterError, ClusterSpec, Provider
from tools.cluster.progress import Progress


class Existing:
    """What KUBECONFIG names."""

    def missing(self, spec: ClusterSpec) -> str | None:
        """A kubeconfig, and nothing asked that would change the cluster."""
        if spec.fake_nodes or spec.kwok:
            return "an existing cluster is used as it is: fake nodes are not added to it"
        if not _kubeconfig().is_file():
            return f"no kubeconfig at {_kubeconfig()}: set KUBECONFIG to one file"
        return None

    def start(self, spec: ClusterSpec, *, progress: Progress) -> Cluster:
        """See that the API server answers.

        Raises:
            ClusterError: it does not.
        """
        cluster = Cluster(
            name=spec.name,
            provider=Provider.EXISTING,
            kubeconfig=_kubeconfig().resolve(),
            folder=spec.folder,
        )
        with progress.step(f"asking the cluster of {cluster.kubeconfig}"):
            if not self.runs(cluster):
                raise ClusterError(f"the API server of {cluster.kubeconfig} is not ready")
        return cluster

    def runs(self, cluster: Cluster) -> bool:
        """Its API server says it is ready."""
        kubectl = ensure_binaries(["kubectl"], say=print)["kubectl"]
        command = [str(kubectl), f"--kubeconfig={cluster.kubeconfig}", "get", "--raw=/readyz"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def load_images(self, cluster: Cluster, *, progress: Progress) -> None:
        """Its nodes pull from their own registry.

        Raises:
            ClusterError: always.
        """
        progress.say(f"cluster {cluster.name} is not ours")
        raise ClusterError("images reach it through the registry that its nodes pull from")

    def remove(self, name: str) -> None:
        """It is not ours: it stays."""


def _kubeconfig() -> Path:
    return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
