"""A real API server, fake nodes, and the real operator as a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.kwok import fake_node
from tests.kube import Kube

ROOT = Path(__file__).parents[3]
_numbers = itertools.count()
_first_node = itertools.count(start=10_000, step=1000)


@dataclass(kw_only=True)
class OperatorProcess:
    """`python -m drumline` against the test's API server; can be killed and started again."""

    kubeconfig: Path
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its log is appended to `folder/operator.log`."""
        key = self.folder / "signing-key"
        key.write_text("a key for tests that is long enough")
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "DRUMLINE_SIGNING_KEY_FILE": str(key),
            "DRUMLINE_HTTP_HOST": "127.0.0.1",
            "DRUMLINE_HTTP_PORT": "0",
            "DRUMLINE_POD_NAME": f"operator-{next(_numbers)}",
            "DRUMLINE_LOG_LEVEL": "debug",
        }
        with (self.folder / "operator.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "drumline"], env=environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL: nothing is released, nothing is said."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self.process = None
        return code

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every structured line so far."""
        lines = (self.folder / "operator.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="session")
def api(control_plane: Cluster) -> Iterator[Kube]:
    """The API server with our CRDs and what the chart brings besides the operator."""
    kube = Kube(control_plane.kubeconfig)
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        kube.ensure(yaml.safe_load(path.read_text()))
    for plural in ("trainingjobs", "trainingqueues", "gpupools"):
        kube.wait(
            "customresourcedefinitions",
            f"{plural}.drumline.dev",
            None,
            lambda crd: any(
                c["type"] == "Established" and c["status"] == "True"
                for c in (crd or {}).get("status", {}).get("conditions", [])
            ),
        )
    kube.ensure(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "drumline-training-pods"},
            "value": 1_000_000,
            "preemptionPolicy": "Never",
        }
    )
    kube.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "drumline-system"}})
    yield kube
    kube.close()


@pytest.fixture(scope="session")
def session_operator(
    control_plane: Cluster, api: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    operator = OperatorProcess(
        kubeconfig=control_plane.kubeconfig, folder=tmp_path_factory.mktemp("operator")
    )
    operator.start()
    yield operator
    if operator.process is not None:
        operator.stop()


@pytest.fixture
def operator(session_operator: OperatorProcess) -> OperatorProcess:
    """The operator, running; a test may kill it."""
    if session_operator.process is None or session_operator.process.poll() is not None:
        session_operator.start()
    return session_operator


@dataclass(frozen=True, kw_only=True)
class Site:
    """A test's own corner: namespace, pool of fake nodes, queue."""

    kube: Kube
    namespace: str
    pool: str
    queue: str
    nodes: tuple[str, ...]

    def submit(self, name: str, **spec: Any) -> None:
        """Create a TrainingJob of one's own template in this corner's queue."""
        body = {"queue": self.queue, "gpuPool": self.pool, **spec}
        if "trainer" not in body:
            body.setdefault("template", {"image": "any:1", "command": ["true"]})
        self.kube.create(
            {
                "apiVersion": "drumline.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": body,
            }
        )

    def job(self, name: str) -> dict[str, Any]:
        """Read a job."""
        return self.kube.get("trainingjobs", name, self.namespace)

    def wait(self, name: str, until: Any, *, seconds: float = 30) -> dict[str, Any]:
        """Wait for a job."""
        found = self.kube.wait("trainingjobs", name, self.namespace, until, seconds=seconds)
        assert found is not None
        return found

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods of a job."""
        return self.kube.list("pods", self.namespace, labels=f"drumline.dev/job={name}")


@pytest.fixture
def site(api: Kube, request: pytest.FixtureRequest) -> Iterator[Site]:
    """4 fake nodes of 8 GPUs in 2 racks, a queue of 32 GPUs."""
    name = f"site-{next(_numbers)}"
    first = next(_first_node)
    nodes: list[str] = []
    for offset in range(4):
        node = fake_node(first + offset, gpus=8, nodes_per_rack=2)
        node["metadata"]["labels"]["drumline.test/site"] = name
        api.create(node)
        nodes.append(node["metadata"]["name"])
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "GpuPool",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"drumline.test/site": name},
                "topologyLevels": [{"name": "rack", "nodeLabel": "drumline.dev/rack"}],
            },
        }
    )
    api.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingQueue",
            "metadata": {"name": name},
            "spec": {"quotas": [{"gpuPool": name, "nominalGpus": 32}]},
        }
    )
    yield Site(kube=api, namespace=name, pool=name, queue=name, nodes=tuple(nodes))
    for job in api.list("trainingjobs", name):
        api.delete("trainingjobs", job["metadata"]["name"], name)
    for node in nodes:
        api.delete("nodes", node)
    api.delete("gpupools", name)
    api.delete("trainingqueues", name)
