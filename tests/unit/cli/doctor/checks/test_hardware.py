from __future__ import annotations

import json

import pytest

from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from drumline_cli.doctor.checks.hardware import clocks, gpus, pools, topology
from drumline_cli.doctor.facts import DeviceSlice, NodeClock, NodeFact
from drumline_cli.doctor.results import CheckFailed, Passed, Warned
from tests.texts import missing
from tests.unit.cli.doctor.facts import H100, a_node, a_pool


def test_a_node_whose_labels_promise_gpus_without_a_plugin_fails() -> None:
    (result,) = gpus((a_node("good"), a_node("bare", gpus=0)), ())
    assert isinstance(result, CheckFailed)
    assert not missing(result.message, "GPUs", "nvidia.com/gpu")
    assert "good" not in result.message


def test_slices_of_mig_count_as_offered() -> None:
    mig = {"nvidia.com/mig-3g.40gb": 2}
    (result,) = gpus((NodeFact(name="mig", labels=H100, allocatable=mig, capacity=mig),), ())
    assert isinstance(result, Passed)


def test_gpus_by_claims_alone_are_named_as_such_and_other_drivers_are_not_gpus() -> None:
    by_claims = DeviceSlice(node="dra", driver="gpu.nvidia.com")
    domains = DeviceSlice(node="bare", driver="compute-domain.nvidia.com")
    hidden, alone = gpus((a_node("dra", gpus=0), a_node("bare", gpus=0)), (by_claims, domains))
    assert isinstance(hidden, CheckFailed)
    assert "GPUs on bare, but" in hidden.message
    assert isinstance(alone, CheckFailed)
    assert not missing(alone.message, "dra", "Dynamic Resource Allocation")


@pytest.mark.parametrize(
    ("label", "resource"),
    [
        ("feature.node.kubernetes.io/amd-gpu", "amd.com/gpu"),
        ("intel.feature.node.kubernetes.io/gaudi", "habana.ai/gaudi"),
    ],
)
def test_other_vendors_are_known_by_their_labels_and_resources(label: str, resource: str) -> None:
    bare = NodeFact(name="bare", labels={label: "true"}, allocatable={}, capacity={})
    (result,) = gpus((bare,), ())
    assert isinstance(result, CheckFailed)
    assert not missing(result.message, "bare", resource)
    amounts = {resource: 8}
    good = NodeFact(name="good", labels={label: "true"}, allocatable=amounts, capacity=amounts)
    assert list(gpus((good,), ())) == [Passed(message="8 GPUs are offered")]


def test_nodes_with_shared_gpus_are_named() -> None:
    labels = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
    nodes = (a_node("whole"), a_node("sliced", labels={**H100, **labels}))
    (_, shared) = pools((a_pool("gpus", nodeSelector=H100),), nodes)
    assert isinstance(shared, Warned)
    assert not missing(shared.message, "nvidia.com/gpu", "GPU")


def test_a_label_that_says_false_promises_nothing() -> None:
    (result,) = gpus((a_node(labels={"nvidia.com/gpu.present": "false"}, gpus=0),), ())
    assert isinstance(result, Warned)
    assert result.message == "no node offers GPUs"


def test_devices_that_a_plugin_withdrew_are_counted() -> None:
    node = NodeFact(
        name="sick",
        labels=H100,
        allocatable={"nvidia.com/gpu": 7},
        capacity={"nvidia.com/gpu": 8},
    )
    broken, rest = gpus((node,), ())
    assert isinstance(broken, Warned)
    assert not missing(broken.message, "7 of 8", "nvidia.com/gpu")
    assert rest == Passed(message="7 GPUs are offered")


def test_without_a_pool_the_fix_is_a_manifest_that_selects_the_nodes() -> None:
    node = a_node(labels={"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"})
    (result,) = pools((), (node,))
    assert isinstance(result, Warned)
    manifest = json.loads(result.fix.partition("'")[2].removesuffix("'"))
    spec = parse(GpuPoolSpec, manifest["spec"])
    assert spec.node_selector == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


def test_a_pool_without_nodes_with_bare_ones_and_with_two_kinds() -> None:
    nodes = (
        a_node("a", labels={"pool": "mixed", "nvidia.com/gpu.product": "H100"}),
        a_node("b", labels={"pool": "mixed", "nvidia.com/gpu.product": "A100"}),
        a_node("c", labels={"pool": "bare"}, gpus=0),
        a_node("d", labels={}),
    )
    results = pools(
        tuple(a_pool(name, nodeSelector={"pool": name}) for name in ("empty", "bare", "mixed")),
        nodes,
    )
    empty, bare, mixed, outside = results
    assert isinstance(empty, Warned)
    assert not missing(empty.message, "empty", "labels")
    assert isinstance(bare, CheckFailed)
    assert not missing(bare.message, "nvidia.com/gpu")
    assert isinstance(mixed, Warned)
    assert "A100, H100" in mixed.message
    assert isinstance(outside, Warned)
    assert not missing(outside.message, "d", "pool")


def test_nodes_that_do_not_say_where_they_are_fail() -> None:
    pool = a_pool(topologyLevels=[{"name": "rack", "nodeLabel": "example.com/rack"}])
    placed = a_node("placed", labels={**H100, "example.com/rack": "r1"})
    (result,) = topology((pool,), (placed, a_node("lost")))
    assert isinstance(result, CheckFailed)
    assert not missing(result.message, "example.com/rack")
    (well,) = topology((pool,), (placed,))
    assert well == Passed(message="h100: 1 domain of level rack")


def test_clocks_are_judged_in_both_directions() -> None:
    def clock(node: str, seconds: float) -> NodeClock:
        return NodeClock(node=node, ahead_seconds=seconds)

    far, off = clocks((clock("a", 0.4), clock("b", -45), clock("c", 12)))
    assert isinstance(far, CheckFailed)
    assert "b 45.0 s behind" in far.message
    assert isinstance(off, Warned)
    assert "c 12.0 s ahead" in off.message
    (well,) = clocks((clock("a", 0.4), clock("b", -1.2)))
    assert isinstance(well, Passed)


def test_pools_that_select_the_same_nodes_are_named_as_the_operator_does() -> None:
    both = pools((a_pool("wide"), a_pool("narrow")), (a_node(),))
    for result, other in zip(both, ("narrow", "wide"), strict=True):
        assert isinstance(result, Warned)
        assert f"{other} also select nodes of it" in result.message
