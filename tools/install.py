"""Drumline in a throwaway cluster, as a user installs it: Helm, a pool, a queue, claims."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.cluster import Cluster, ClusterError
from tools.cluster.binaries import ensure_binaries
from tools.cluster.context import ensure_app, image_cache
from tools.cluster.volumes import bind_folder, kubectl

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "drumline"
RELEASE = "drumline"
SYSTEM_NAMESPACE = "drumline-system"
SITE_PACKAGES_CLAIM = "drumline-site-packages"
CHECKPOINTS_CLAIM = "checkpoints"
RACK_LABEL = "drumline.dev/rack"

Say = Callable[[str], None]
Json = dict[str, Any]


def chart_values(*, progress_seconds: int) -> Json:
    """Values for images built here; the trainer's packages come from a claim, not its image."""
    claim = {"claimName": SITE_PACKAGES_CLAIM, "readOnly": True}
    mount = {"name": "site-packages", "mountPath": "/opt/site-packages", "readOnly": True}
    return {
        "image": {"repository": "drumline/operator", "tag": "dev"},
        "trainerImage": {"tag": "dev"},
        "podAnnotations": {"drumline.dev/sources": _sources()},
        "progressIntervalSeconds": progress_seconds,
        "trainerPod": {
            "volumes": [{"name": "site-packages", "persistentVolumeClaim": claim}],
            "volumeMounts": [mount],
            "env": [
                {"name": "DRUMLINE_DEVICE", "value": "cpu"},  # the GPUs do not exist
                # the images of throwaway clusters have no certificates; the stock ones do
                {"name": "SSL_CERT_FILE", "value": "/opt/site-packages/certifi/cacert.pem"},
            ],
        },
    }


def _sources() -> str:
    """Names what the operator's image is made of: a changed one rolls the Deployment."""
    with image_cache():
        return ensure_app("operator").name


def install(
    cluster: Cluster,
    *,
    say: Say,
    progress_seconds: int = 2,
    timeout_seconds: int = 180,
    values: Json | None = None,
) -> None:
    """Install or upgrade the chart and wait until the operator is ready.

    Args:
        cluster: where to.
        say: told what is built on the way.
        progress_seconds: between two refreshes of a job's progress.
        timeout_seconds: for all of it.
        values: more values of the chart.

    Raises:
        ClusterError: Helm's own words.
    """
    namespace(cluster, SYSTEM_NAMESPACE)
    chart = {**chart_values(progress_seconds=progress_seconds), **(values or {})}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(chart, file)
        file.flush()
        command = ["upgrade", "--install", RELEASE, str(CHART), "--values", file.name]
        helm(cluster, *command, "--wait", f"--timeout={timeout_seconds}s", say=say)


def helm(cluster: Cluster, *arguments: str, say: Say) -> str:
    """Run Helm in the operator's namespace; returns what it printed.

    Raises:
        ClusterError: Helm's own words.
    """
    program = ensure_binaries(["helm"], say=say)["helm"]
    options = (f"--kubeconfig={cluster.kubeconfig}", "--namespace", SYSTEM_NAMESPACE)
    done = subprocess.run(
        [program, *options, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def namespace(cluster: Cluster, name: str) -> None:
    """A namespace that enforces the `restricted` Pod Security level."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }
    kubectl(cluster, "apply", "--filename=-", manifests=[manifest])


def team(cluster: Cluster, name: str) -> Path:
    """A namespace in which jobs can run and keep checkpoints; returns the checkpoints' folder."""
    namespace(cluster, name)
    packages = Path(sysconfig.get_path("purelib"))
    bind_folder(
        cluster, namespace=name, claim=SITE_PACKAGES_CLAIM, host_path=packages, read_only=True
    )
    checkpoints = cluster.folder / "checkpoints" / name
    bind_folder(cluster, namespace=name, claim=CHECKPOINTS_CLAIM, host_path=checkpoints)
    return checkpoints


def pool_and_queue(cluster: Cluster, *, pool: str, queue: str, gpus: int) -> None:
    """All GPU nodes as one pool with racks, and a queue that may hold `gpus` of them."""
    api_version = "drumline.dev/v1alpha1"
    levels = [{"name": "rack", "nodeLabel": RACK_LABEL}]
    selector = {"nvidia.com/gpu.present": "true"}
    manifests: list[Json] = [
        {
            "apiVersion": api_version,
            "kind": "GpuPool",
            "metadata": {"name": pool},
            "spec": {"nodeSelector": selector, "topologyLevels": levels},
        },
        {
            "apiVersion": api_version,
            "kind": "TrainingQueue",
            "metadata": {"name": queue},
            "spec": {"quotas": [{"gpuPool": pool, "nominalGpus": gpus}]},
        },
    ]
    kubectl(cluster, "apply", "--filename=-", manifests=manifests)
