"""Folders of this machine as claims, for pods whose namespace forbids hostPath volumes.

A `restricted` namespace allows claims only. So the volume is made outside, already bound to the
one claim that may use it: a volume for each namespace.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tools.cluster.binaries import ensure_binaries
from tools.cluster.model import Cluster, ClusterError


def bind_folder(
    cluster: Cluster, *, namespace: str, claim: str, host_path: Path, read_only: bool = False
) -> None:
    """Make a claim in an existing namespace that is that folder; idempotent.

    A folder to write to is made, and opened to every user: hostPath volumes ignore a pod's
    fsGroup.

    Raises:
        ClusterError: kubectl's own words.
    """
    if not read_only:
        host_path.mkdir(parents=True, exist_ok=True)
        host_path.chmod(0o777)
    mode = "ReadOnlyMany" if read_only else "ReadWriteMany"
    capacity = {"storage": "1Gi"}  # binding compares it; a folder has no such limit
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "accessModes": [mode],
            "capacity": capacity,
            "claimRef": {"namespace": namespace, "name": claim},
            "hostPath": {"path": str(host_path.resolve()), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": capacity},
            "storageClassName": "",
            "volumeName": f"{namespace}-{claim}",
        },
    }
    kubectl(cluster, "apply", "--filename=-", manifests=[volume, wanted])


def kubectl(
    cluster: Cluster, *arguments: str, manifests: list[dict[str, Any]] | None = None
) -> str:
    """What kubectl printed for this cluster; the manifests go in on standard input.

    Raises:
        ClusterError: kubectl's own words.
    """
    binary = ensure_binaries(["kubectl"], say=print)["kubectl"]
    content = {"apiVersion": "v1", "kind": "List", "items": manifests or []}
    done = subprocess.run(
        [str(binary), f"--kubeconfig={cluster.kubeconfig}", *arguments],
        input=json.dumps(content),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
