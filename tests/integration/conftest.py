"""What integration tests share: one real control plane a session, on loopback, without root."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from tests.kube import Kube
from tests.operator_process import prepare
from tools.cluster import Cluster, ClusterSpec, start, stop


def pytest_configure() -> None:
    """SIGTERM interrupts as Ctrl-C does: fixtures take their clusters down."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """etcd, API server, controller manager and scheduler, and KWOK with no nodes yet.

    Tests share it: take a namespace of your own, and nodes by `create_fake_nodes`.
    DRUMLINE_INTEGRATION_CLUSTER names one to use (started if it does not run) and to leave running.
    """
    kept = os.environ.get("DRUMLINE_INTEGRATION_CLUSTER")
    spec = ClusterSpec(name=kept or f"drumline-integration-{os.getpid()}", nodes=0, kwok=True)
    try:
        yield start(spec, say=print)
    finally:
        if kept is None:
            stop(spec.name, say=print)


@pytest.fixture
def kube(control_plane: Cluster) -> Iterator[Kube]:
    """The API server with our CRDs and what the chart brings besides the operator."""
    kube = Kube(control_plane.kubeconfig)
    prepare(kube)
    yield kube
    kube.close()


@pytest.fixture
def namespace(kube: Kube) -> str:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name
