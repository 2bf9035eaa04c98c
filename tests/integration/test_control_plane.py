"""The control plane the integration tests stand on is a real one."""

from __future__ import annotations

from tools.cluster import Cluster, create_fake_nodes
from tools.cluster.kwok import ready_nodes
from tools.cluster.process import find, wait_until
from tools.cluster.rest import Api


def test_a_fake_node_becomes_ready_and_runs_a_pod_bound_to_it(control_plane: Cluster) -> None:
    before = ready_nodes(control_plane.kubeconfig)
    (node,) = create_fake_nodes(control_plane.kubeconfig, count=1, first=900_000)
    pod = {
        "metadata": {"name": "on-a-fake-node"},
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
            ],
        },
    }
    with Api(control_plane.kubeconfig) as api:
        path = "/api/v1/namespaces/default/pods"
        api.request("POST", path, pod)

        def running() -> bool:
            return api.request("GET", f"{path}/on-a-fake-node")["status"]["phase"] == "Running"

        wait_until(running, what="pod Running", timeout_seconds=30, folder=control_plane.folder)
        status = api.request("GET", f"{path}/on-a-fake-node")["status"]
        api.request("DELETE", f"{path}/on-a-fake-node")
        api.request("DELETE", f"/api/v1/nodes/{node}")
    assert ready_nodes(control_plane.kubeconfig) >= before
    assert status["podIP"].startswith("127.77.")  # never a real host's address


def test_its_processes_are_known_by_their_mark(control_plane: Cluster) -> None:
    assert {process.role for process in find(control_plane.folder)} == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
    }
