"""A real API server, fake nodes, and the real operator as a process of its own."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kube import Kube
from tests.operator_process import OperatorProcess, prepare
from tests.patience import HANG_SECONDS
from tools.cluster import Cluster
from tools.cluster.kwok import fake_node
from tools.cluster.rest import ApiStatusError

FOLDER = Path(__file__).parent
LOG_LINES = 80
"""Of the operator, shown where a test fails."""
_numbers = itertools.count()
_first_node = itertools.count(start=10_000, step=1000)

HIGH = "drumline-test-high"
HIGH_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": HIGH},
    "value": 1000,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that start their own operators last. The shared operator stops only once."""
    here = [item for item in items if item.path.is_relative_to(FOLDER)]
    here.sort(key=lambda item: "no_operator" in getattr(item, "fixturenames", ()))
    ordered = iter(here)
    items[:] = [next(ordered) if item.path.is_relative_to(FOLDER) else item for item in items]


@pytest.fixture(scope="session")
def api(control_plane: Cluster) -> Iterator[Kube]:
    """The API server with our CRDs and what the chart brings besides the operator."""
    kube = Kube(control_plane.kubeconfig)
    prepare(kube)
    yield kube
    kube.close()


@pytest.fixture(scope="session")
def session_operator(
    api: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    operator = OperatorProcess(
        kubeconfig=api.kubeconfig,
        folder=tmp_path_factory.mktemp("operator"),
        settings={
            "DRUMLINE_READ_KARPENTER": "true",  # mostly there is none
            "DRUMLINE_AUTOSCALING_MODES": "ProvisioningRequest,CapacityBuffer",
        },
    )
    operator.start()
    yield operator
    if operator.process is not None:
        operator.stop()


@pytest.fixture
def operator(
    session_operator: OperatorProcess, request: pytest.FixtureRequest
) -> Iterator[OperatorProcess]:
    """The operator, running; a test may kill it. Where the test fails, its log is shown."""
    if session_operator.process is None or session_operator.process.poll() is not None:
        session_operator.start()
    log = session_operator.folder / "operator.log"
    known_bytes, failed_before = log.stat().st_size, request.session.testsfailed
    yield session_operator
    if request.session.testsfailed > failed_before:
        lines = log.read_bytes()[known_bytes:].decode(errors="replace").splitlines()
        print(*lines[-LOG_LINES:], sep="\n")


@pytest.fixture
def no_operator(session_operator: OperatorProcess) -> None:
    """Nobody leads: for tests that bring operators of their own."""
    if session_operator.process is not None:
        session_operator.stop()


def next_nodes() -> int:
    """The first of a thousand numbers for fake nodes that no other corner uses."""
    return next(_first_node)


def release_lease(kube: Kube) -> None:
    """What a killed leader cannot do any more; spares its successor the lease's duration."""
    body = {"spec": {"holderIdentity": ""}}
    kube.patch("leases", "drumline-operator", body, "drumline-system")


def once_allowed(write: Callable[[], object]) -> None:
    """Write what the API server takes once it has heard of other rules."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        try:
            write()
        except ApiStatusError as error:
            if error.code != 422 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # the API server takes rules in without saying when
        else:
            return


def once_refused(write: Callable[[], object]) -> None:
    """Write until the API server refuses it, because it has heard of other rules."""
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        try:
            write()
        except ApiStatusError as error:
            if error.code == 422:
                return
            raise
        time.sleep(0.1)  # the API server takes rules in without saying when
    raise TimeoutError("the write is not refused")


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

    def wait(self, name: str, until: Any, *, seconds: float = HANG_SECONDS) -> dict[str, Any]:
        """Wait for a job."""
        job = self.kube.wait("trainingjobs", name, self.namespace, until, seconds=seconds)
        assert job is not None
        return job

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods of a job."""
        return self.kube.list("pods", self.namespace, labels=f"drumline.dev/job={name}")

    def end_pods(self, name: str, *, exit_code: int = 0) -> None:
        """Let the main containers of all the job's pods exit, as their kubelets would report."""
        for pod in self.pods(name):
            try:
                self._end(pod, exit_code=exit_code)
            except ApiStatusError as error:
                if error.code != 404:  # the end of another one had it deleted
                    raise

    def end_pod(self, pod: str, *, exit_code: int) -> None:
        """Let the main container of one pod exit."""
        self._end(self.kube.get("pods", pod, self.namespace), exit_code=exit_code)

    def _end(self, pod: dict[str, Any], *, exit_code: int) -> None:
        ended = {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "finishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        (container,) = pod["spec"]["containers"]
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": False,
            "state": {"terminated": ended},
        }
        phase = "Failed" if exit_code else "Succeeded"
        body = {"phase": phase, "containerStatuses": [status]}
        self.kube.patch_status("pods", pod["metadata"]["name"], body, self.namespace)


def a_claim(name: str, *, namespace: str, storage_class: str = "") -> dict[str, Any]:
    """A claim; without a class nothing binds it, which is the kubelets' business."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
        },
    }


def a_volume_for(claim: dict[str, Any]) -> dict[str, Any]:
    """A volume for a claim: nobody is evicted for a job whose claim has none."""
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{metadata['namespace']}-{metadata['name']}"},
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": spec["resources"]["requests"],
            "claimRef": {"namespace": metadata["namespace"], "name": metadata["name"]},
            "hostPath": {"path": "/nowhere"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": spec["storageClassName"],
        },
    }


def with_claim(name: str) -> dict[str, Any]:
    """A template that mounts a claim."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
    mount = {"name": "data", "mountPath": "/data"}
    return {"image": "any:1", "volumes": [volume], "volumeMounts": [mount]}


def with_pod_claim(storage_class: str) -> dict[str, Any]:
    """A template with a claim of each pod's own."""
    spec = {"storageClassName": storage_class, "resources": {"requests": {"storage": "1Gi"}}}
    volume = {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    mount = {"name": "data", "mountPath": "/data"}
    return {"image": "any:1", "volumes": [volume], "volumeMounts": [mount]}


def ensure_waiting_class(kube: Kube) -> str:
    """A storage class whose claims wait for their first consumer; nothing provisions them."""
    name = "drumline-test-waits"
    kube.ensure(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "drumline.test/none",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    return name


@contextmanager
def a_site(api: Kube, *, silent: bool = False) -> Iterator[Site]:
    """4 fake nodes of 8 GPUs in 2 racks, a queue of 32 GPUs.

    Args:
        api: where.
        silent: whether nobody plays the nodes' kubelets: pods stay Pending.
    """
    name = f"site-{os.getpid()}-{next(_numbers)}"
    first = next(_first_node)
    nodes: list[str] = []
    for offset in range(4):
        node = fake_node(first + offset, gpus=8, nodes_per_rack=2)
        node["metadata"]["labels"]["drumline.test/site"] = name
        if silent:
            del node["metadata"]["annotations"]["kwok.x-k8s.io/node"]
        api.create(node)
        nodes.append(node["metadata"]["name"])
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    claim = a_claim("checkpoints", namespace=name)
    api.create(a_volume_for(claim))
    api.create(claim)
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
    try:
        yield Site(kube=api, namespace=name, pool=name, queue=name, nodes=tuple(nodes))
    finally:
        _clear(api, name, nodes)


def _clear(api: Kube, name: str, nodes: list[str]) -> None:
    for job in api.list("trainingjobs", name):
        api.delete("trainingjobs", job["metadata"]["name"], name)
    for node in nodes:
        api.delete("nodes", node)
    api.delete("gpupools", name)
    api.delete("trainingqueues", name)


@pytest.fixture
def site(api: Kube) -> Iterator[Site]:
    """4 fake nodes of 8 GPUs in 2 racks, a queue of 32 GPUs."""
    with a_site(api) as made:
        yield made


@pytest.fixture
def silent_site(api: Kube) -> Iterator[Site]:
    """The same with nodes whose kubelets do nothing: pods stay Pending."""
    with a_site(api, silent=True) as made:
        yield made
