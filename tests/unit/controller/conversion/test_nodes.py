"""Nodes and pools -> the values that are decided on."""

from __future__ import annotations

from fractions import Fraction

import pytest

from drumline.controller.nodes.conversion import (
    GpuUnits,
    capped,
    node_facts_of,
    node_of,
    pool_of,
    resources_of,
    with_runtime_class,
)
from drumline.kube.views import ConditionView, RuntimeClassView
from drumline_api.capacity import PoolCapacity
from drumline_api.gpupool import GpuPoolSpec, HardwareSpec
from drumline_api.objects import builtin
from drumline_scheduler.disruption.model import ConditionFact, NodeFacts, TaintFact
from drumline_scheduler.model import CapacityType, Node, Pool, Taint, TaintEffect
from drumline_scheduler.resources import NOTHING, Resources
from tests.builders import T0
from tests.unit.controller.conversion.test_autoscaling import a_spec
from tests.unit.controller.views import CREATED, node_view


def test_resources_by_the_pools_own_gpu_name() -> None:
    amounts = {
        "cpu": 4000,
        "memory": 8,
        "pods": 110,
        "ephemeral-storage": 9,
        "nvidia.com/gpu": 8,
        "rdma/hca": 2,
        "hugepages-2Mi": 5,
        "attachable-volumes-csi": 3,
    }
    assert resources_of(amounts, units=GpuUnits({"nvidia.com/gpu": 1}), pods=None) == Resources(
        gpus=8,
        cpu_millis=4000,
        memory_bytes=8,
        pods=110,
        ephemeral_bytes=9,
        extended=(("rdma/hca", 2), ("hugepages-2Mi", 5), ("attachable-volumes-csi", 3)),
    )
    assert resources_of(amounts, units=GpuUnits({"other/gpu": 1}), pods=1).gpus == 0


def test_a_node_with_all_that_keeps_pods_off_it() -> None:
    spec = GpuPoolSpec.model_validate(
        {
            "nodeSelector": {"gpu": "h100"},
            "topologyLevels": [
                {"name": "block", "nodeLabel": "block"},
                {"name": "rack", "nodeLabel": "rack"},
            ],
        }
    )
    view = node_view(
        labels={"gpu": "h100", "block": "b1"},
        taints=(
            builtin.Taint(key="team", effect="NoSchedule", value="vision"),
            builtin.Taint(key="odd", effect="SomedayPerhaps"),
            builtin.Taint(key="drumline.dev/promised", effect="NoSchedule"),
        ),
        terminating=True,
    )
    assert node_of(view, pool="h100", spec=spec, used=NOTHING, distrusted=True) == Node(
        name="node-0",
        pool="h100",
        allocatable=Resources(gpus=8, cpu_millis=96_000, memory_bytes=1 << 40, pods=110),
        domains=("b1", ""),
        labels=view.labels,
        taints=(Taint(key="team", value="vision", effect=TaintEffect.NO_SCHEDULE),),
        unschedulable=True,
        ready=True,
        distrusted=True,
    )
    assert pool_of("h100", spec) == Pool(
        name="h100",
        levels=("block", "rack"),
        level_labels=("block", "rack"),
        selector="gpu=h100",
        gpu_resource="nvidia.com/gpu",
    )


def test_a_node_that_an_autoscaler_is_about_to_remove_is_taken_after_its_equals() -> None:
    taint = builtin.Taint(key="DeletionCandidateOfClusterAutoscaler", effect="PreferNoSchedule")
    assert node_of(node_view(taints=(taint,)), pool="h100", spec=PLAIN, used=NOTHING).suspicion == 1
    hard = builtin.Taint(key="team", effect="NoSchedule")
    assert node_of(node_view(taints=(hard,)), pool="h100", spec=PLAIN, used=NOTHING).suspicion == 0


PLAIN = GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})


@pytest.mark.parametrize(
    "taint",
    [
        "karpenter.sh/unregistered",
        "node.cilium.io/agent-not-ready",
        "ebs.csi.aws.com/agent-not-ready",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu-driver",
    ],
)
def test_a_node_with_a_startup_taint_is_still_being_set_up(taint: str) -> None:
    view = node_view(taints=(builtin.Taint(key=taint, effect="NoSchedule"),))
    assert node_of(view, pool="h100", spec=PLAIN, used=NOTHING).starting


@pytest.mark.parametrize(
    ("labels", "starting"),
    [
        ({}, False),
        ({"karpenter.sh/nodepool": "gpu"}, True),
        ({"karpenter.sh/nodepool": "gpu", "karpenter.sh/initialized": "true"}, False),
    ],
)
def test_a_node_of_karpenter_is_set_up_once_karpenter_says_so(
    labels: dict[str, str], starting: bool
) -> None:
    taint = builtin.Taint(key="nvidia.com/gpu", effect="NoSchedule", value="present")
    view = node_view(labels={"gpu": "h100", **labels}, taints=(taint,))
    assert node_of(view, pool="h100", spec=PLAIN, used=NOTHING).starting is starting


def test_a_node_of_an_autoscaler_is_set_up_once_its_gpus_are_allocatable() -> None:
    view = node_view(allocatable={"cpu": 96_000, "pods": 110})
    assert node_of(view, pool="h100", spec=a_spec(), used=NOTHING).starting
    assert not node_of(view, pool="h100", spec=PLAIN, used=NOTHING).starting
    assert not node_of(node_view(), pool="h100", spec=a_spec(), used=NOTHING).starting
    assert not node_of(view, pool="h100", spec=a_spec(), used=NOTHING, is_set_up=True).starting


def test_what_a_pool_costs_is_counted_in_millionths() -> None:
    capacity = PoolCapacity(type="Spot", price_per_gpu_hour="0.9")
    hardware = HardwareSpec(gpu="H100-SXM")
    spec = GpuPoolSpec(node_selector={"a": "b"}, capacity=capacity, hardware=hardware)
    assert pool_of("spot", spec) == Pool(
        name="spot",
        capacity=CapacityType.SPOT,
        price=900_000,
        selector="a=b",
        gpu_resource="nvidia.com/gpu",
        gpu_model="H100-SXM",
    )


def test_what_a_node_announces() -> None:
    view = node_view(
        labels={"a": "b"},
        annotations={"c": "d"},
        taints=(
            builtin.Taint(key="going", effect="NoExecute", value="v", time_added=CREATED),
            builtin.Taint(key="odd", effect="NoSchedule", time_added="yesterday"),
        ),
        conditions=(
            ConditionView(
                type="KernelDeadlock", status="True", reason="r", message="m", since_time=CREATED
            ),
        ),
        unschedulable=True,
    )
    assert node_facts_of(view) == NodeFacts(
        name="node-0",
        labels={"a": "b"},
        annotations={"c": "d"},
        taints=(
            TaintFact(key="going", effect="NoExecute", value="v", added_at=T0),
            TaintFact(key="odd", effect="NoSchedule"),
        ),
        conditions=(
            ConditionFact(type="KernelDeadlock", status="True", reason="r", message="m", since=T0),
        ),
        unschedulable=True,
    )


def test_an_absurd_amount_is_capped_so_that_sums_stay_below_an_int64() -> None:
    absurd: dict[str, int] = dict.fromkeys(
        ("cpu", "memory", "ephemeral-storage", "g", "a/b"), 2**63 - 1
    )
    pod = resources_of(absurd, units=GpuUnits({"g": 1}), pods=1)
    assert {*pod.amounts().values()} == {2**48, 1}
    assert max(capped(pod.times(100)).amounts().values()) == 2**48
    assert pod.times(10_000).memory_bytes < 2**63


def test_a_negative_amount_is_nothing() -> None:
    assert resources_of({"cpu": -(2**63)}, units=GpuUnits({"g": 1}), pods=1).cpu_millis == 0


@pytest.mark.parametrize(
    ("strategy", "replicas", "shares"),
    [
        ("time-slicing", "4", True),
        ("mps", "2", True),
        ("mps", None, True),
        ("time-slicing", "1", False),
        ("none", "4", False),
        (None, "4", False),
    ],
)
def test_gpus_are_shared_where_gpu_feature_discovery_says_so(
    strategy: str | None, replicas: str | None, *, shares: bool
) -> None:
    labels = {"nvidia.com/gpu.sharing-strategy": strategy, "nvidia.com/gpu.replicas": replicas}
    view = node_view(labels={key: value for key, value in labels.items() if value is not None})
    spec = GpuPoolSpec.model_validate({"nodeSelector": {"a": "b"}})
    assert node_of(view, pool="h100", spec=spec, used=NOTHING).shares_gpus is shares


MIXED = GpuPoolSpec.model_validate(
    {
        "nodeSelector": {"a": "b"},
        "gpuResource": "amd.com/gpu",
        "partitions": {"partsPerGpu": 8, "resources": [{"resource": "amd.com/cpx", "parts": 1}]},
    }
)


def test_whole_gpus_and_parts_are_counted_as_parts_and_each_by_its_kind() -> None:
    amounts = {"amd.com/gpu": 2, "amd.com/cpx": 8, "nvidia.com/gpu": 1}
    counted = resources_of(amounts, units=GpuUnits.of(MIXED), pods=1)
    assert counted.gpus == 24
    assert counted.extended == (("amd.com/cpx", 8), ("amd.com/gpu", 2), ("nvidia.com/gpu", 1))
    assert pool_of("mixed", MIXED).partitions == ("amd.com/cpx",)


def test_a_pool_says_how_many_of_its_parts_are_a_gpu_and_what_one_costs() -> None:
    spec = MIXED.model_copy(update={"capacity": PoolCapacity(price_per_gpu_hour="2.50")})
    pool = pool_of("mixed", spec)
    assert (pool.parts_per_gpu, pool.in_gpus(4), pool.price) == (8, Fraction(1, 2), 2_500_000)
    plain = pool_of("plain", GpuPoolSpec.model_validate({"nodeSelector": {"a": "b"}}))
    assert (plain.parts_per_gpu, plain.in_gpus(4)) == (1, 4)


def test_tolerations_of_a_newer_kubernetes_tolerate_nothing_and_stop_no_snapshot() -> None:
    taints = tuple(builtin.Taint(key=key, effect="NoSchedule") for key in ("a", "b", "c"))
    view = node_view(taints=taints)
    runtime = RuntimeClassView(
        name="kata",
        uid="u",
        resource_version="1",
        tolerations=(
            builtin.Toleration(key="a", operator="Near", value="1"),
            builtin.Toleration(key="b", operator="Exists", effect="NoTuesday"),
            builtin.Toleration(key="c", operator="Exists"),
        ),
    )
    node = node_of(view, pool="h100", spec=a_spec(), used=NOTHING)
    assert [taint.key for taint in with_runtime_class(node, runtime).tolerated] == ["c"]
