"""Devices of nodes: which count, which are free, and what their taints announce."""

from __future__ import annotations

import json
from typing import Any

from drumline.api.conditions import DisruptionKind
from drumline.controller.cache.cluster import ClusterCache
from drumline.controller.cache.devices import DeviceCache
from drumline.controller.cache.nodes import NodeCache
from drumline.disruption.model import Confidence
from drumline.kube import device_codec
from drumline.kube.device_views import DeviceName, DeviceSliceView, ResourceClaimView
from drumline.kube.views import Key
from tests.unit.controller.views import node_view, pool_view

DRIVER = "gpu.nvidia.com"
XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}


def a_slice(name: str = "s", *, generation: int = 1, count: int = 1, **devices: Any) -> Any:
    listed = [
        {"name": each.replace("_", "-"), "attributes": {"type": {"string": "gpu"}}, **said}
        for each, said in devices.items()
    ]
    spec = {
        "driver": DRIVER,
        "nodeName": "node-0",
        "pool": {"name": "node-0", "generation": generation, "resourceSliceCount": count},
        "devices": listed,
    }
    return slice_of({"metadata": {"name": name}, "spec": spec})


def slice_of(document: dict[str, Any]) -> DeviceSliceView:
    return device_codec.device_slice(json.dumps(document).encode())


def a_claim(name: str, *devices: str, extended: bool = True, **result: Any) -> ResourceClaimView:
    results = [
        {"request": "r", "driver": DRIVER, "pool": "node-0", "device": each, **result}
        for each in devices
    ]
    annotations = {device_codec.EXTENDED_CLAIM: "true"} if extended else {}
    document = {
        "metadata": {"namespace": "team", "name": name, "annotations": annotations},
        "status": {"allocation": {"devices": {"results": results}}} if results else {},
    }
    return device_codec.resource_claim(json.dumps(document).encode())


def filled(*slices: DeviceSliceView) -> DeviceCache:
    cache = DeviceCache()
    for each in slices:
        assert cache.on_slice(None, each) == {"node-0"}
    return cache


def free(cache: DeviceCache) -> list[str]:
    return [each.device for each in cache.free("node-0", driver=DRIVER)]


def test_tainted_shared_and_partial_devices_are_not_usable() -> None:
    mig = {"attributes": {"type": {"string": "mig"}}}
    cache = filled(
        a_slice(a={}, b={"taints": [XID]}, c=mig, d={"allowMultipleAllocations": True}, e={})
    )
    assert cache.usable("node-0", driver=DRIVER) == 2
    assert free(cache) == ["a", "e"]
    assert cache.usable("node-0", driver="other") == cache.usable("node-1", driver=DRIVER) == 0


def test_only_the_newest_generation_counts_and_only_whole() -> None:
    old, first = a_slice("old", a={}, b={}), a_slice("new-1", generation=2, count=2, c={})
    cache = filled(old)
    cache.on_slice(None, first)
    assert free(cache) == []
    cache.on_slice(None, a_slice("new-2", generation=2, count=2, d={}))
    assert free(cache) == ["c", "d"]
    cache.on_slice(first, None)
    assert free(cache) == []


def test_devices_of_others_are_not_there_and_those_of_our_pods_are_used() -> None:
    cache = filled(a_slice(a={}, b={}, c={}, d={}))
    foreign, ours = a_claim("notebook", "a", extended=False), a_claim("pod-gpus", "b")
    assert cache.on_claim(None, foreign) == {"node-0"}
    cache.on_claim(None, ours)
    cache.on_claim(None, a_claim("admin", "c", adminAccess=True))
    assert cache.usable("node-0", driver=DRIVER) == 3
    assert free(cache) == ["c", "d"]
    assert cache.on_claim(foreign, None) == {"node-0"}
    assert free(cache) == ["a", "c", "d"]


def test_what_was_written_and_not_seen_is_given_to_nobody_else() -> None:
    cache, key = filled(a_slice(a={}, b={})), Key("team", "pod-gpus")
    cache.assume(key, (DeviceName(DRIVER, "node-0", "a"),))
    assert free(cache) == ["b"]
    cache.on_claim(None, a_claim("pod-gpus"))  # made, not allocated: an earlier version
    assert free(cache) == ["b"]
    cache.on_claim(a_claim("pod-gpus"), a_claim("pod-gpus", "a"))
    assert not cache.is_assumed(key)
    assert free(cache) == ["b"]


def test_a_pool_of_devices_counts_them_and_another_says_that_they_are_hidden() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    bare = node_view(allocatable={"cpu": 96_000, "memory": 1 << 40, "pods": 110})
    state.nodes.on_node(None, bare)
    plain = pool_view()
    state.on_pool(None, plain)
    state.nodes.devices.on_slice(None, a_slice(a={}, b={}))
    state.nodes.devices_changed({"node-0"})
    (node,) = state.scheduling.snapshot(now=0.0).nodes
    assert (node.allocatable.gpus, node.hides_gpus) == (0, True)
    by_claims = pool_view()
    by_claims.spec["devices"] = {"driver": DRIVER, "deviceClass": DRIVER}
    state.on_pool(plain, by_claims)
    (node,) = state.scheduling.snapshot(now=0.0).nodes
    assert (node.allocatable.gpus, node.hides_gpus) == (2, False)


def test_a_pool_of_devices_that_nobody_publishes_says_that_they_are_not_counted() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.nodes.on_node(None, node_view())
    by_claims = pool_view()
    by_claims.spec["devices"] = {"driver": DRIVER, "deviceClass": DRIVER}
    state.on_pool(None, by_claims)
    (node,) = state.scheduling.snapshot(now=0.0).nodes
    assert (node.allocatable.gpus, node.hides_gpus) == (0, True)


def test_a_driver_that_wants_pods_off_a_device_announces_a_disruption_of_its_node() -> None:
    nodes = NodeCache(clock=lambda: 0.0)
    nodes.on_node(None, node_view())
    well, sick = a_slice(a={}), a_slice(a={"taints": [XID]})
    nodes.devices.on_slice(None, well)
    assert not list(nodes.disruptions())
    nodes.devices.on_slice(well, sick)
    (change,) = nodes.devices_changed({"node-0", "unknown"})
    assert change.schedulable
    (disruption,) = nodes.disruptions()
    assert (disruption.kind, disruption.source) == (DisruptionKind.HARDWARE, XID["key"])
    assert disruption.confidence is Confidence.LIKELY
    nodes.devices.on_slice(sick, a_slice(a={"taints": [{**XID, "effect": "NoSchedule"}]}))
    nodes.devices_changed({"node-0"})
    assert not list(nodes.disruptions())
