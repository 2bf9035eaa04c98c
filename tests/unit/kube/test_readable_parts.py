"""Objects that cannot be read whole still count with what can be read of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from drumline.controller.nodes.nodes import NodeCache
from drumline.kube import codec, device_codec, storage_codec
from drumline.kube.device_views import DeviceName
from drumline.kube.views import PodView, Sharing
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.model import Node
from tests.texts import missing
from tests.unit.controller.cache.test_nodes import members_only
from tests.unit.controller.views import foreign_pod, node_view
from tests.unit.scheduler.builders import cluster, gang, run

POOLS = {"h100": GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})}
POD = {
    "metadata": {
        "namespace": "team",
        "name": "theirs",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"drumline.dev/job": "llama", "other": "text"},
    },
    "spec": {
        "nodeName": "node-0",
        "containers": [{"name": "a", "resources": {"requests": {"nvidia.com/gpu": "6"}}}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
NODE = {
    "metadata": {"name": "node-0", "uid": "n", "resourceVersion": "7", "labels": {"gpu": "h100"}},
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1Ti", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
Edit = Callable[[dict[str, Any]], object]


def changed(document: dict[str, Any], edit: Edit) -> bytes:
    copy = json.loads(json.dumps(document))
    edit(copy)
    return json.dumps(copy).encode()


def node_beside(pod: PodView) -> Node:
    nodes = NodeCache(clock=lambda: 0.0)
    nodes.on_node(None, node_view())
    nodes.on_pod(None, pod)
    (value,) = nodes.in_pools(POOLS, roles=members_only)
    return value


@pytest.mark.parametrize(
    ("edit", "gpus"),
    [
        (lambda pod: pod["spec"].update(overhead={"cpu": "many"}), 6),
        (lambda pod: pod["spec"].update(containers=5), 0),
        (lambda pod: pod["spec"]["containers"].append("b"), 6),
        (lambda pod: pod["spec"]["containers"][0]["resources"]["requests"].update(cpu="?"), 6),
        (lambda pod: pod["spec"]["containers"][0].update(resources=7), 0),
        (lambda pod: pod["spec"].update(activeDeadlineSeconds="soon"), 6),
        (lambda pod: pod["spec"].update(volumes={"persistentVolumeClaim": 1}), 6),
        (lambda pod: pod["status"].update(containerStatuses=[{"ready": 1}]), 6),
        (
            lambda pod: pod["status"].update(
                containerStatuses=[{"name": "a", "allocatedResources": {"cpu": "?"}}]
            ),
            0,
        ),
        (lambda pod: pod["metadata"].update(annotations={"a": 1}), 6),
    ],
)
def test_a_bound_pod_that_cannot_be_read_holds_its_node(edit: Edit, gpus: int) -> None:
    raw = changed(POD, edit)
    with pytest.raises(codec.Undecodable):
        codec.pod(raw)
    pod = codec.pod_in_part(raw)
    assert (pod.name, pod.uid, pod.node_name, pod.finished) == ("theirs", "u", "node-0", False)
    assert (pod.ready, pod.labels) == (True, {"drumline.dev/job": "llama"})
    node = node_beside(pod)
    assert node.used.gpus == gpus
    (blocked,) = run(cluster(node), gang("small", nodes=1, gpus=1)).blocked
    assert not missing(blocked.message, "pod team/theirs cannot be read")


def test_the_node_is_used_again_once_the_pod_is_read_or_ends() -> None:
    nodes = NodeCache(clock=lambda: 0.0)
    nodes.on_node(None, node_view())
    unread = codec.pod_in_part(changed(POD, lambda pod: pod["spec"].update(containers=5)))
    nodes.on_pod(None, unread)
    assert [node.closed != "" for node in nodes.in_pools(POOLS, roles=members_only)] == [True]
    nodes.on_pod(unread, codec.pod(json.dumps(POD).encode()))
    assert [node.closed for node in nodes.in_pools(POOLS, roles=members_only)] == [""]


def test_a_pod_that_has_ended_holds_nothing() -> None:
    raw = changed(
        POD, lambda pod: (pod["spec"].update(containers=5), pod["status"].update(phase="Failed"))
    )
    assert codec.pod_in_part(raw).finished
    assert node_beside(codec.pod_in_part(raw)).closed == ""


def test_a_pod_that_is_not_bound_is_no_part_of_its_group() -> None:
    raw = changed(POD, lambda pod: pod["spec"].update(containers=5, nodeName=""))
    with pytest.raises(codec.Undecodable):
        codec.pod_in_part(raw)


@pytest.mark.parametrize(
    "edit",
    [
        lambda node: node["spec"]["taints"].append({"key": "b"}),
        lambda node: node["spec"].update(unschedulable="yes"),
        lambda node: node["status"]["allocatable"].update(cpu="?"),
        lambda node: node["status"]["allocatable"].update(cpu=[1]),
        lambda node: node["status"]["conditions"].append(3),
        lambda node: node["metadata"].update(annotations=["a"]),
    ],
)
def test_a_node_that_cannot_be_read_keeps_its_pods_and_takes_no_others(edit: Edit) -> None:
    raw = changed(NODE, edit)
    with pytest.raises(codec.Undecodable):
        codec.node(raw)
    view = codec.node_in_part(raw)
    assert (view.name, view.uid, view.ready, view.terminating) == ("node-0", "n", True, False)
    assert [taint.key for taint in view.taints] == ["a"]
    nodes = NodeCache(clock=lambda: 0.0)
    assert nodes.on_node(None, view).schedulable
    nodes.on_pod(None, foreign_pod("theirs"))
    assert (nodes.is_gone("node-0"), nodes.is_ready("node-0")) == (False, True)
    (node,) = nodes.in_pools(POOLS, roles=members_only)
    assert node.allocatable.gpus == 8
    (blocked,) = run(cluster(node), gang("small", nodes=1, gpus=1)).blocked
    assert not missing(blocked.message, "the node cannot be read")
    read = codec.node(json.dumps(NODE).encode())
    assert nodes.on_node(view, read).schedulable
    assert [each.closed for each in nodes.in_pools(POOLS, roles=members_only)] == [""]


def test_a_claim_keeps_the_modes_that_can_be_read() -> None:
    claim = {
        "metadata": {"namespace": "team", "name": "data", "uid": "c", "resourceVersion": "7"},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"], "storageClassName": 7},
        "status": {"phase": "Bound"},
    }
    view = storage_codec.persistent_volume_claim_in_part(json.dumps(claim).encode())
    assert (view.volume, view.sharing, view.unread) == ("pv", Sharing.ONE_POD, True)


def test_a_claim_of_devices_holds_those_that_can_be_read() -> None:
    result = {"driver": "gpu.nvidia.com", "pool": "node-0", "device": "gpu-0"}
    claim = {
        "metadata": {"namespace": "team", "name": "gpus", "uid": "c", "resourceVersion": "7"},
        "spec": {"devices": {"requests": [{"name": 5}]}},
        "status": {"allocation": {"devices": {"results": [result, {"driver": "x"}]}}},
    }
    raw = json.dumps(claim).encode()
    with pytest.raises(codec.Undecodable):
        device_codec.resource_claim(raw)
    view = device_codec.resource_claim_in_part(raw)
    assert view.devices == (DeviceName("gpu.nvidia.com", "node-0", "gpu-0"),)


@pytest.mark.parametrize("raw", [b"", b"5", b"{}", b'{"metadata": {"name": 5}, "spec": {}}'])
def test_a_document_without_a_name_is_no_object(raw: bytes) -> None:
    for decode in (codec.pod_in_part, codec.node_in_part, device_codec.resource_claim_in_part):
        with pytest.raises(codec.Undecodable):
            decode(raw)
