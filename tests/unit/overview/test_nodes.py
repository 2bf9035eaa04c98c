"""Nodes with their holders, promises and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.overview.nodes import node_rows
from drumline.overview.rows import NodeRow
from drumline_cli.overview.tables import nodes
from tests.unit.overview.objects import a_cluster, a_job, a_node, a_pod, a_pool, running


def only(*objects: dict[str, Any]) -> NodeRow:
    (row,) = node_rows(a_cluster(a_pool(), *objects))
    return row


def test_nodes_lie_in_their_racks_and_are_counted_in_numbers() -> None:
    members = [a_node(f"node-{number}", rack=f"r{number % 2}") for number in (10, 9, 2)]
    rows = node_rows(a_cluster(a_pool(), *members, a_node("cpu", pool="none")))
    assert [(row.node, row.domains) for row in rows] == [
        ("node-2", ("r0",)),
        ("node-10", ("r0",)),
        ("node-9", ("r1",)),
    ]


def test_a_node_is_paid_for_as_its_pool_says() -> None:
    capacity = {"type": "Spot", "pricePerGpuHour": "0.90"}
    (row,) = node_rows(a_cluster(a_pool(capacity=capacity), a_node("node-1")))
    assert (row.capacity, row.price_per_gpu_hour) == ("Spot", "0.90")
    assert "node-1   gpus   Spot 0.90   r1" in nodes([row])
    row = only(a_node("node-1"))
    assert (row.capacity, row.price_per_gpu_hour) == ("OnDemand", "")


def a_slice(driver: str, *devices: str) -> dict[str, Any]:
    spec = {"driver": driver, "nodeName": "node-1", "devices": [{"name": each} for each in devices]}
    return {"kind": "ResourceSlice", "metadata": {"name": driver}, "spec": spec}


def test_gpus_that_exist_as_devices_alone_are_said_or_counted() -> None:
    bare, gpus = (
        {**a_node("node-1"), "status": {"allocatable": {"cpu": "96"}}},
        a_slice("gpu.nvidia.com", "gpu-0", "gpu-1"),
    )
    row = only(bare, gpus)
    assert row.gpus == 0
    bare["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert only(bare, gpus).why == "its GPUs exist only as DRA devices"
    assert only(bare, a_slice("dra.net", "nic-0")).why == ""
    pool = a_pool(devices={"driver": "gpu.nvidia.com", "deviceClassName": "gpu.nvidia.com"})
    (row,) = node_rows(a_cluster(pool, bare, gpus))
    assert (row.gpus, row.why) == (2, "")


def test_holders_and_promises_are_named() -> None:
    places = {"gpuPool": "gpus", "prefix": "node-", "nodes": ["1", "1", "1"], "lost": [2]}
    holder = a_job("holder", spec={"gpusPerNode": 2}, status=running(assignment=places))
    nominated = {"gpuPool": "gpus", "prefix": "node", "nodes": ["-1"]}
    row = only(a_node("node-1"), holder, a_job("next", status={"nominated": nominated}))
    assert (row.gpus, row.held_gpus) == (8, 4)
    assert (row.jobs, row.promised_to) == (("team/holder",), ("team/next",))


@pytest.mark.parametrize(
    ("fields", "state", "why"),
    [
        ({}, "Ready", ""),
        ({"spec": {"unschedulable": True}}, "Cordoned", "kubectl uncordon opens it again"),
        ({"conditions": []}, "NotReady", "no kubelet has reported"),
        (
            {"conditions": [{"type": "Ready", "status": "Unknown", "message": "gone\x1b[2J"}]},
            "NotReady",
            "gone [2J",
        ),
        (
            {"spec": {"taints": [{"key": "sick", "effect": "NoExecute"}]}},
            "Tainted",
            "sick:NoExecute",
        ),
        ({"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}, "Ready", ""),
        (
            {"spec": {"taints": [{"key": "drumline.dev/promised", "effect": "NoSchedule"}]}},
            "Ready",
            "",
        ),
        ({"spec": {"taints": [{"key": "soft", "effect": "PreferNoSchedule"}]}}, "Ready", ""),
    ],
)
def test_a_node_says_what_keeps_pods_off(fields: dict[str, Any], state: str, why: str) -> None:
    row = only(a_node("node-1", **fields))
    assert (row.state, row.why) == (state, why)


def test_what_is_known_against_a_node_is_shown_with_it() -> None:
    health = [
        {"node": "node-1", "message": "Slow (by 20 %) for jobs in team-a", "evidence": []},
        {"node": "node-2", "message": "CheckFailed", "quarantinedAt": "2026-11-25T10:00:00Z"},
        {"node": "node-3", "message": "CheckFailed", "quarantinedAt": "2026-11-25T10:00:00Z"},
    ]
    pool = a_pool() | {"status": {"nodeHealth": health}}
    cordoned = a_node("node-3", spec={"unschedulable": True})
    rows = node_rows(a_cluster(pool, a_node("node-1"), a_node("node-2"), cordoned))
    assert [row.state for row in rows] == ["Ready", "Quarantined", "Cordoned"]
    slow, failed, cordoned = (row.why for row in rows)
    assert "Slow (by 20 %)" in slow
    assert failed == "CheckFailed"
    assert "kubectl uncordon" in cordoned


def test_of_two_pools_that_select_a_node_the_older_has_it() -> None:
    old, new = a_pool("z-old", nodeSelector={}), a_pool("a-new", nodeSelector={})
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    new["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    (row,) = node_rows(a_cluster(new, old, a_node("node-1")))
    assert row.pool == "z-old"


@pytest.mark.parametrize("amount", ["", "many", "-1", "9" * 5000])
def test_an_amount_that_is_none_counts_as_no_gpu(amount: str) -> None:
    node = a_node("node-1")
    node["status"]["allocatable"]["nvidia.com/gpu"] = amount
    assert only(node).gpus == 0


def test_gpus_of_other_pods_are_not_free() -> None:
    on_it = {"nodeName": "node-1"}
    replica = {
        "labels": {"pod-template-hash": "abc", "drumline.dev/queue": ""},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-abc", "controller": True}],
    }
    row = only(
        a_node("node-1"),
        a_job("holder", spec={"gpusPerNode": 2}, status=running()),
        a_pod("chat-abc-1", gpus=2, spec=on_it, metadata=replica),
        a_pod("chat-abc-2", gpus=1, spec=on_it, metadata=replica),
        a_pod("over", gpus=4, spec=on_it, status={"phase": "Succeeded"}),
        a_pod("elsewhere", gpus=4, spec={"nodeName": "node-2"}),
        a_pod("ours", gpus=2, spec=on_it, metadata={"labels": {"drumline.dev/job": "holder"}}),
    )
    assert (row.gpus, row.held_gpus, row.foreign_gpus) == (8, 5, 3)
    assert row.workloads == ("team/deployments/chat",)
    assert "5/8" in nodes([row])


def test_racks_are_in_the_order_of_their_numbers() -> None:
    members = [a_node(f"n{number}", rack=f"rack-{number}") for number in (10, 2, 1)]
    rows = node_rows(a_cluster(a_pool(), *members))
    assert [row.domains for row in rows] == [("rack-1",), ("rack-2",), ("rack-10",)]
