"""Drumline as a user has it: installed by Helm, a team's namespace, jobs by manifest."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kube import Json, Kube, phase_is
from tests.patience import HANG_SECONDS
from tools import install
from tools.cluster import Cluster, kubectl
from tools.cluster.images import TRAINER_IMAGE
from tools.install import SYSTEM_NAMESPACE

POOL = "gpus"
QUEUE = "research"
OPERATOR_NODE = "node-2"
"""The operator's own node: the others may die under the jobs."""
PREEMPTION_SECONDS = 20
SLEEPER: Json = {
    "image": TRAINER_IMAGE,
    "command": ["sleep", "3600"],
    "terminationGracePeriodSeconds": 1,
}
"""A template that holds its GPUs; as process 1 `sleep` ignores SIGTERM."""
VALUES: Json = {
    "nodeSelector": {"kubernetes.io/hostname": OPERATOR_NODE},
    "preemptionSeconds": PREEMPTION_SECONDS,
    "dynamicResources": {"enabled": True},
}
"""Of the chart, beside those of any throwaway cluster."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One team's namespace on a cluster with Drumline."""

    cluster: Cluster
    kube: Kube
    namespace: str
    checkpoints: Path

    def submit(self, name: str, **spec: Any) -> None:
        """Create a TrainingJob in the shared queue."""
        self.kube.create(
            {
                "apiVersion": "drumline.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"queue": QUEUE, **spec},
            }
        )

    def wait(self, name: str, until: Any, *, seconds: float = HANG_SECONDS) -> Json:
        """Wait for a job."""
        result = self.kube.wait("trainingjobs", name, self.namespace, until, seconds=seconds)
        assert result is not None
        return result

    def finish(self, name: str, *, seconds: float = HANG_SECONDS) -> Json:
        """Wait until a job succeeded; a failed one shows its message and its logs."""
        done = self.wait(
            name, lambda job: phase_is("Succeeded")(job) or phase_is("Failed")(job), seconds=seconds
        )
        status = done["status"]
        assert status["phase"] == "Succeeded", status
        return status

    def pods(self, name: str) -> list[Json]:
        """The pods of a job, by index."""
        result = self.kube.list("pods", self.namespace, labels=f"drumline.dev/job={name}")
        return sorted(result, key=lambda pod: int(pod["metadata"]["labels"]["drumline.dev/index"]))

    def nodes(self, name: str) -> list[str]:
        """Where its pods are, by index."""
        return [pod["spec"]["nodeName"] for pod in self.pods(name)]

    def logs(self, pod: str) -> str:
        """What `kubectl logs` prints."""
        return kubectl(self.cluster, "logs", "--namespace", self.namespace, pod)

    def losses(self, folder: str) -> dict[int, float]:
        """Loss by step, as rank 0 wrote it beside its checkpoints."""
        lines = (self.checkpoints / folder / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return {row["step"]: row["loss"] for row in rows}


def open_site(cluster: Cluster, kube: Kube) -> Site:
    """A namespace of one's own with claims for packages and checkpoints."""
    name = f"team-{secrets.token_hex(3)}"
    return Site(cluster=cluster, kube=kube, namespace=name, checkpoints=install.team(cluster, name))


def close_site(site: Site) -> None:
    """Delete its jobs, wait until their pods have given their devices back."""
    for job in site.kube.list("trainingjobs", site.namespace):
        site.kube.delete("trainingjobs", job["metadata"]["name"], site.namespace)
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods, seconds=HANG_SECONDS)
    kubectl(site.cluster, "delete", "namespace", site.namespace, "--wait=false")


def assert_restricted(site: Site, job: str) -> None:
    """All pods are under the restricted level, those of a job have no token of the API server."""
    for pod in site.pods(job):
        assert not any("kube-api-access" in volume["name"] for volume in pod["spec"]["volumes"])
    for name in (site.namespace, SYSTEM_NAMESPACE):
        labels = site.kube.get("namespaces", name)["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    operators = site.kube.list("pods", SYSTEM_NAMESPACE, labels="app.kubernetes.io/name=drumline")
    ready = [pod["status"]["containerStatuses"][0]["ready"] for pod in operators]
    assert ready == [True] * len(operators) != []
