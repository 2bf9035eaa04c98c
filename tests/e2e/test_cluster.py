"""The throwaway cluster is a real one: what these tests assert, the kubelet decides."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.cluster import Cluster, ClusterSpec, bind_folder, kubectl, load, start, stop
from tools.cluster.cgroups import leftovers
from tools.cluster.context import REPOSITORY
from tools.cluster.images import TRAINER_IMAGE
from tools.cluster.network import namespaces_of, set_cable
from tools.cluster.nodes import gpu_ids, set_gpu_health
from tools.cluster.process import find

NODES = ("node-0", "node-1", "node-2")


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace that enforces the restricted Pod Security level, gone afterwards."""
    name = f"cluster-{secrets.token_hex(3)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }
    apply(cluster, manifest)
    yield name
    kubectl(cluster, "delete", "namespace", name, "--wait=false")


def apply(cluster: Cluster, manifest: dict[str, Any]) -> None:
    kubectl(cluster, "apply", "--filename=-", manifests=[manifest])


def restricted_pod(
    name: str, namespace: str, *, node: str, gpus: int, script: str
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": TRAINER_IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", script],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus), "memory": "256Mi"}},
                }
            ],
        },
    }


def get(cluster: Cluster, *words: str) -> dict[str, Any]:
    return json.loads(kubectl(cluster, "get", *words, "--output=json"))


def wait_for(cluster: Cluster, thing: str, path: str, value: str, *options: str) -> None:
    condition = f"--for=jsonpath={{{path}}}={value}"
    kubectl(cluster, "wait", thing, condition, "--timeout=60s", *options)


def wait_for_phase(cluster: Cluster, namespace: str, pod: str, wanted: str) -> None:
    wait_for(cluster, f"pod/{pod}", ".status.phase", wanted, f"--namespace={namespace}")


def test_three_nodes_of_two_gpus_stand_in_two_racks(cluster: Cluster) -> None:
    # a kubelet that starved on a busy machine is unready for a moment
    kubectl(cluster, "wait", "node", *NODES, "--for=condition=Ready", "--timeout=120s")
    nodes = get(cluster, "nodes")["items"]
    assert {
        node["metadata"]["name"]: (
            node["metadata"]["labels"]["drumline.dev/rack"],
            node["metadata"]["labels"]["nvidia.com/gpu.count"],
            node["status"]["allocatable"]["nvidia.com/gpu"],
        )
        for node in nodes
        if node["metadata"]["name"] in NODES
    } == {
        "node-0": ("rack-0", "2", "2"),
        "node-1": ("rack-0", "2", "2"),
        "node-2": ("rack-1", "2", "2"),
    }


def test_a_restricted_pod_gets_its_gpus_and_folders_and_reaches_a_pod_of_another_node(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    tmp_path.parent.chmod(0o755)
    bind_folder(cluster, namespace=namespace, claim="out", host_path=tmp_path / "out")
    server = restricted_pod(
        "server",
        namespace,
        node="node-0",
        gpus=1,
        script="exec python3 -m http.server 8000 -d /opt",
    )
    apply(cluster, server)
    wait_for_phase(cluster, namespace, "server", "Running")
    address = get(cluster, "pod", "server", f"--namespace={namespace}")["status"]["podIP"]
    fetch = (
        "import time, urllib.request as u\n"
        "for _ in range(1000):\n"
        "  try: print(len(u.urlopen('http://ADDRESS:8000/', timeout=5).read()) > 0); break\n"
        "  except OSError: time.sleep(0.1)"
    ).replace("ADDRESS", address)
    script = f'echo "gpus=$NVIDIA_VISIBLE_DEVICES"; echo written > /out/file; python3 -c "{fetch}"'
    client = restricted_pod("client", namespace, node="node-2", gpus=2, script=script)
    client["spec"]["volumes"] = [{"name": "out", "persistentVolumeClaim": {"claimName": "out"}}]
    mount = {"name": "out", "mountPath": "/out"}
    client["spec"]["containers"][0]["volumeMounts"] = [mount]
    apply(cluster, client)
    wait_for_phase(cluster, namespace, "client", "Succeeded")

    gpus, reached = kubectl(cluster, "logs", "client", f"--namespace={namespace}").splitlines()

    assert set(gpus.removeprefix("gpus=").split(",")) == {"GPU-node-2-0", "GPU-node-2-1"}
    assert reached == "True"
    assert (tmp_path / "out" / "file").read_text() == "written\n"


def test_the_kubelet_refuses_a_third_gpu(cluster: Cluster, namespace: str) -> None:
    full = restricted_pod("full", namespace, node="node-1", gpus=2, script="exec sleep 600")
    extra = restricted_pod("extra", namespace, node="node-1", gpus=1, script="exec sleep 600")
    apply(cluster, full)
    wait_for_phase(cluster, namespace, "full", "Running")
    apply(cluster, extra)
    wait_for_phase(cluster, namespace, "extra", "Failed")

    status = get(cluster, "pod", "extra", f"--namespace={namespace}")["status"]

    assert status["reason"] in {"UnexpectedAdmissionError", "OutOfnvidia.com/gpu"}
    wait_for_phase(cluster, namespace, "full", "Running")


@pytest.mark.extended
def test_an_unhealthy_device_lowers_allocatable_and_not_capacity(cluster: Cluster) -> None:
    node = cluster.nodes[0]

    thing, path = f"node/{node.name}", r".status.allocatable.nvidia\.com/gpu"
    try:
        set_gpu_health(cluster, node, gpu_ids(node)[1], healthy=False)
        wait_for(cluster, thing, path, "1")
        capacity = get(cluster, "node", node.name)["status"]["capacity"]["nvidia.com/gpu"]
    finally:
        set_gpu_health(cluster, node, gpu_ids(node)[1], healthy=True)
    wait_for(cluster, thing, path, "2")
    assert capacity == "2"


@pytest.mark.extended
def test_a_node_whose_cable_is_pulled_is_out_of_reach_until_it_is_plugged_in(
    cluster: Cluster,
) -> None:
    node, fabric = cluster.nodes[1], str(cluster.netns)
    connect = "import socket; socket.create_connection((ADDRESS, 10250), timeout=5)"
    probe = ["nsenter", f"--net=/run/netns/{fabric}", sys.executable, "-c"]
    probe.append(connect.replace("ADDRESS", repr(node.address)))

    def in_reach() -> bool:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    assert in_reach()
    try:
        set_cable(node, fabric=fabric, plugged=False)
        assert not in_reach()
    finally:
        set_cable(node, fabric=fabric, plugged=True)
    assert in_reach()


def assert_no_trace(spec: ClusterSpec) -> None:
    assert load(spec.name) is None
    assert find(spec.folder) == []
    assert namespaces_of(spec.name) == []
    assert leftovers(spec.name) == []
    assert not list(spec.folder.parent.glob(f"{spec.name}*"))
    assert spec.name not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.extended
def test_down_leaves_nothing_of_a_cluster_with_a_running_pod() -> None:
    spec = ClusterSpec(name=f"drumline-gone-{secrets.token_hex(3)}", nodes=1, gpus_per_node=1)
    try:
        cluster = start(spec, say=print)
        pod = restricted_pod("left", "default", node="node-0", gpus=1, script="exec sleep 600")
        apply(cluster, pod)
        wait_for_phase(cluster, "default", "left", "Running")
    finally:
        stop(spec.name, say=print)

    assert_no_trace(spec)


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["control plane ...", "1 nodes with 2 GPUs each ..."])
def test_down_leaves_nothing_of_a_start_that_was_killed(moment: str) -> None:
    spec = ClusterSpec(name=f"drumline-killed-{secrets.token_hex(3)}", nodes=1)
    command = [sys.executable, "-m", "tools.cluster", "up", f"--name={spec.name}", "--nodes=1"]
    try:
        with subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as up:
            assert up.stdout is not None
            seen = any(moment in line for line in up.stdout)
            os.killpg(up.pid, signal.SIGKILL)  # with the command it waits for: a machine goes down
    finally:
        stop(spec.name, say=print)

    assert seen
    assert_no_trace(spec)
