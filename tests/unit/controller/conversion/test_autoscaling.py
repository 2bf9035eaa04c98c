"""New nodes are offered as the GpuPool describes them; placeholders ask for just these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline.controller.pools.autoscaling import (
    demand_name,
    demands_in,
    offers_of,
    placeholders_of,
)
from drumline.controller.pools.placeholder_pods import SCHEDULER_NAME, unschedulable
from drumline.kube.views import PodView
from drumline_api.base import ANNOTATION_NODE_DEMAND, LABEL_NODE_DEMAND, RESOURCE_CHANNEL
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.node_demands import NodeDemand
from drumline_scheduler.model import Gang, NodeOperator, NodeRequirement, TaintEffect, Toleration
from drumline_scheduler.resources import Resources

SHARE = Resources(
    gpus=8, cpu_millis=1500, memory_bytes=1 << 30, pods=2, extended=(("rdma/hca", 1),)
)
DEMAND = NodeDemand(
    key="team/gang",
    uid="u-1",
    pool="h100",
    zone="a",
    nodes=2,
    pool_nodes=5,
    shares=(SHARE, SHARE),
    asked_at=1000.0,
)
GANG = Gang(
    key="team/gang",
    uid="u-1",
    queue="q",
    nodes=4,
    per_pod=Resources(gpus=4, pods=1),
    queued_at=0.0,
    selector={"disk": "fast"},
    affinity=((NodeRequirement(key="cpu", operator=NodeOperator.IN, values=("amd",)),),),
    tolerations=(Toleration(key="team", value="a", effect=TaintEffect.NO_SCHEDULE),),
)


def a_spec(**autoscaling: Any) -> GpuPoolSpec:
    return GpuPoolSpec.model_validate(
        {
            "nodeSelector": {"pool": "h100"},
            "topologyLevels": [
                {"name": "zone", "nodeLabel": "topology.kubernetes.io/zone"},
                {"name": "rack", "nodeLabel": "rack"},
            ],
            "autoscaling": {
                "mode": "Placeholders",
                "maxNodes": 9,
                "node": {
                    "allocatable": {"nvidia.com/gpu": 8, "cpu": "90", "memory": "1Ti"},
                    "labels": {"disk": "fast"},
                    "taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}],
                },
                **autoscaling,
            },
        }
    )


def pods() -> list[dict[str, Any]]:
    return placeholders_of(
        DEMAND, gang=GANG, spec=a_spec(), pool_uid="p-1", namespace="ours", image="any:1"
    )


def resources_in(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return container["resources"]


def test_a_pool_offers_a_node_in_each_zone_in_order() -> None:
    plain = GpuPoolSpec.model_validate({"nodeSelector": {"pool": "plain"}})
    first, second = offers_of({"plain": plain, "h100": a_spec(zones=["b", "a"])})
    assert (first.zone, second.zone, first.pool_limit) == ("b", "a", 9)
    node = first.node
    assert (node.pool, node.domains) == ("h100", ("b", ""))
    assert node.labels == {"pool": "h100", "disk": "fast", "topology.kubernetes.io/zone": "b"}
    assert node.allocatable == Resources(gpus=8, cpu_millis=90_000, memory_bytes=1 << 40, pods=110)
    assert [taint.key for taint in node.taints] == ["team"]


def test_a_pool_without_zones_offers_one_anywhere() -> None:
    (offer,) = offers_of({"h100": a_spec()})
    assert (offer.zone, offer.node.domains) == ("", ("", ""))


def test_what_the_operator_counts_itself_is_offered_and_not_asked_for() -> None:
    """No container can request volumes, and no node lists the channel of a ComputeDomain."""
    (offer,) = offers_of({"h100": a_spec()}, limited=["disks.example.com"])
    ((name, amount),) = offer.node.allocatable.extended
    assert amount > 1_000_000
    counted = Resources(extended=((name, 2), (RESOURCE_CHANNEL, 1)))
    (pod,) = placeholders_of(
        replace(DEMAND, shares=(SHARE + counted,)),
        gang=GANG,
        spec=a_spec(),
        pool_uid="p-1",
        namespace="ours",
        image="any:1",
    )
    assert resources_in(pod) == resources_in(pods()[0])


def test_a_placeholder_asks_for_what_the_gang_takes_of_a_node_and_is_nobodys_to_bind() -> None:
    first, second = pods()
    assert first["spec"]["schedulerName"] == SCHEDULER_NAME
    assert "nodeName" not in first["spec"]
    assert first["spec"]["nodeSelector"] == {
        "disk": "fast",
        "pool": "h100",
        "topology.kubernetes.io/zone": "a",
    }
    assert first["spec"]["tolerations"] == [
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "drumline.dev/promised", "operator": "Exists"},  # what is kept for it is there
    ]
    (term,) = first["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "cpu", "operator": "In", "values": ["amd"]}]}
    assert resources_in(first) == {
        "requests": {
            "cpu": "1500m",
            "memory": str(1 << 30),
            "nvidia.com/gpu": "8",
            "rdma/hca": "1",
        },
        "limits": {"nvidia.com/gpu": "8", "rdma/hca": "1"},
    }
    assert first["metadata"]["name"] == f"{demand_name(DEMAND)}-0"
    assert second["metadata"]["name"] == f"{demand_name(DEMAND)}-1"
    assert first["metadata"]["ownerReferences"][0]["uid"] == "p-1"


def test_autoscalers_look_for_one_condition() -> None:
    (condition,) = unschedulable("it waits", now=0.0)["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "PodScheduled",
        "False",
        "Unschedulable",
    )


def seen(manifest: dict[str, Any], **annotations: str) -> PodView:
    metadata = manifest["metadata"]
    return PodView(
        namespace="ours",
        name=metadata["name"],
        uid=metadata["name"],
        resource_version="1",
        labels=metadata["labels"],
        annotations=annotations or metadata["annotations"],
    )


def test_a_new_leader_reads_what_was_asked_and_takes_over_whole_demands_alone() -> None:
    there = [seen(manifest) for manifest in pods()]
    (demand,) = demands_in(there)
    assert (demand.key, demand.uid, demand.pool, demand.zone) == ("team/gang", "u-1", "h100", "a")
    assert (demand.nodes, demand.pool_nodes, demand.asked_at) == (2, 5, 1000.0)
    assert len(demand.shares) == 2
    assert demand_name(demand) == demand_name(DEMAND)
    assert demands_in(there[:1]) == ()
    assert demands_in(there[1:]) == ()


def test_a_record_that_is_none_is_no_demand() -> None:
    first, second = pods()
    for text in ("{", '{"key": 1}', "", '{"more": 1}'):
        assert demands_in([seen(first, **{ANNOTATION_NODE_DEMAND: text}), seen(second)]) == ()
    assert first["metadata"]["labels"] == {LABEL_NODE_DEMAND: "u-1"}
