from __future__ import annotations

from tools.cluster.kwok import fake_node, is_ready


def test_fake_nodes_stand_in_racks_and_are_kept_by_kwok() -> None:
    nodes = [fake_node(index, gpus=8, nodes_per_rack=10) for index in (0, 9, 10)]
    assert [node["metadata"]["labels"]["drumline.dev/rack"] for node in nodes] == [
        "rack-0",
        "rack-0",
        "rack-1",
    ]
    assert nodes[2]["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"
    assert nodes[2]["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_a_node_without_a_ready_condition_is_not_ready() -> None:
    assert not is_ready({"status": {}})
    assert not is_ready({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    assert is_ready({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
