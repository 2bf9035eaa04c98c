"""Devices of nodes: which count, which are free, and what their taints announce."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
import pytest

from drumline.controller.nodes.devices import DeviceCache
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import codec, device_codec
from drumline.kube.device_views import (
    DeviceName,
    DeviceSliceView,
    DeviceTaintRuleView,
    ResourceClaimView,
)
from drumline.kube.views import Key, PodView
from drumline_api.base import RESOURCE_CHANNEL
from drumline_api.conditions import DisruptionKind
from drumline_scheduler.disruption.model import Confidence
from tests.unit.controller.views import foreign_pod, node_view, pool_view

DRIVER = "gpu.nvidia.com"
XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}


def a_slice(
    name: str = "s",
    *,
    generation: int = 1,
    count: int = 1,
    counters: dict[str, dict[str, int]] | None = None,
    **devices: Any,
) -> Any:
    listed = [
        {"name": each.replace("_", "-"), "attributes": {"type": {"string": "gpu"}}, **said}
        for each, said in devices.items()
    ]
    spec = {
        "driver": DRIVER,
        "nodeName": "node-0",
        "pool": {"name": "node-0", "generation": generation, "resourceSliceCount": count},
        "devices": listed,
        "sharedCounters": [
            {"name": each, "counters": amounts_of(amounts)}
            for each, amounts in (counters or {}).items()
        ],
    }
    return slice_of({"metadata": {"name": name}, "spec": spec})


def amounts_of(counters: dict[str, int]) -> dict[str, Any]:
    return {name: {"value": str(amount)} for name, amount in counters.items()}


def taking(counters: str, **amounts: int) -> dict[str, Any]:
    return {"consumesCounters": [{"counterSet": counters, "counters": amounts_of(amounts)}]}


def slice_of(document: dict[str, Any]) -> DeviceSliceView:
    return device_codec.device_slice(json.dumps(document).encode())


def a_claim(
    name: str, *devices: str, extended: bool = True, owner: str = "", **result: Any
) -> ResourceClaimView:
    results = [
        {"request": "r", "driver": DRIVER, "pool": "node-0", "device": each, **result}
        for each in devices
    ]
    annotations = {device_codec.EXTENDED_CLAIM: "true"} if extended else {}
    document = {
        "metadata": {
            "namespace": "team",
            "name": name,
            "annotations": annotations,
            "ownerReferences": [{"uid": owner, "controller": True}] if owner else [],
        },
        "status": {"allocation": {"devices": {"results": results}}} if results else {},
    }
    return device_codec.resource_claim(json.dumps(document).encode())


def a_rule(name: str = "rule", *, taint: dict[str, str] = XID, **spec: Any) -> DeviceTaintRuleView:
    document = {"metadata": {"name": name}, "spec": {"taint": taint, **spec}}
    return device_codec.device_taint_rule(json.dumps(document).encode())


def filled(*slices: DeviceSliceView) -> DeviceCache:
    cache = DeviceCache()
    for each in slices:
        assert cache.on_slice(None, each) == {"node-0"}
    return cache


def usable(cache: DeviceCache, **requests: int) -> int:
    """By pods that request so many."""
    return cache.usable("node-0", driver=DRIVER, requests=requests)


def free(cache: DeviceCache) -> list[str]:
    return [each.device for each in cache.free("node-0", driver=DRIVER)]


def test_tainted_shared_and_partial_devices_are_not_usable() -> None:
    mig = {"attributes": {"type": {"string": "mig"}}}
    cache = filled(
        a_slice(a={}, b={"taints": [XID]}, c=mig, d={"allowMultipleAllocations": True}, e={})
    )
    assert usable(cache) == 2
    assert free(cache) == ["a", "e"]
    assert cache.usable("node-0", driver="other", requests={}) == 0
    assert cache.usable("node-1", driver=DRIVER, requests={}) == 0


def test_a_device_of_which_a_part_is_held_is_not_usable() -> None:
    """A driver publishes a GPU and its partitions, which consume the same counters."""

    part = {"attributes": {"type": {"string": "mig"}}, **taking("gpu-0", memory=4)}
    counters = {"gpu-0": {"memory": 8}, "gpu-1": {"memory": 8}}
    whole: Any = {"a": taking("gpu-0", memory=8), "b": taking("gpu-1", memory=8), "c": {}}
    cache = DeviceCache()
    cache.on_slice(None, a_slice(counters=counters, **whole, a_1=part, a_2=part))
    assert cache.usable("node-0", driver=DRIVER, requests={}) == 3
    notebook = a_claim("notebook", "a-1", extended=False)
    assert cache.on_claim(None, notebook) == {"node-0"}
    assert cache.usable("node-0", driver=DRIVER, requests={}) == 2
    assert [each.device for each in cache.free("node-0", driver=DRIVER)] == ["b", "c"]
    cache.on_claim(notebook, None)
    ours = DeviceName(DRIVER, "node-0", "b")
    cache.assume(Key("team", "own"), (ours,))
    assert [each.device for each in cache.free("node-0", driver=DRIVER)] == ["a", "c"]
    own = a_claim("own", "b", extended=False)
    cache.on_claim(None, own)
    assert cache.usable("node-0", driver=DRIVER, requests={}) == 3, "the job itself holds b"


def test_devices_with_counters_of_their_own_in_one_set_are_apart() -> None:
    """The counters decide, and not the set that lists them. Slices of all nodes may list them."""
    listed: Any = {f"g{number}": taking("node", **{f"g{number}": 1}) for number in range(8)}
    cache = filled(a_slice(count=2, **listed))
    assert usable(cache) == 0, "a slice is missing"
    listing = a_slice("counters", count=2, counters={"node": dict.fromkeys(listed, 1)})
    assert cache.on_slice(None, msgspec.structs.replace(listing, node_name="")) == {"node-0"}
    assert usable(cache) == 8
    cache.on_claim(None, a_claim("notebook", "g0", extended=False))
    assert usable(cache) == 7
    assert free(cache) == [f"g{number}" for number in range(1, 8)]


def test_devices_that_no_scheduler_would_give_away_are_not_usable() -> None:
    assert usable(filled(a_slice(a={"bindingConditions": ["attached"]}, b={}))) == 1
    assert usable(filled(a_slice(a=taking("unknown", memory=1), b={}))) == 0
    twice = a_slice("one", count=2, a={}), a_slice("two", count=2, a={}, b={})
    assert usable(filled(*twice)) == 0


def room(
    counters: dict[str, dict[str, int]], devices: dict[str, Any], held: Iterable[str]
) -> dict[tuple[str, str], int]:
    """The counters that are left, as checkAvailableCounters of kube-scheduler computes them."""
    left = {
        (own, name): value for own, all_of in counters.items() for name, value in all_of.items()
    }
    for device in held:
        for each in devices[device]["consumesCounters"]:
            for name, amount in each["counters"].items():
                left[each["counterSet"], name] -= int(amount["value"])
    return left


@pytest.mark.parametrize("seed", range(40))
def test_counters_are_counted_as_kube_scheduler_counts_them(seed: int) -> None:
    random = Random(seed)
    counters = {own: {name: random.randint(1, 4) for name in "xy"} for own in ("one", "two")}
    devices: dict[str, Any] = {}
    for number in range(random.randint(1, 6)):
        consumed = [
            {"counterSet": own, "counters": amounts_of({name: random.randint(0, 3)})}
            for own in random.sample(["one", "two"], random.randint(0, 2))
            for name in random.choice("xy")
        ]
        devices[f"d{number}"] = {"consumesCounters": consumed}

    def added(held: list[str], candidates: Iterable[str]) -> list[str]:
        """Return the devices that can be allocated one after the other."""
        new: list[str] = []
        for each in candidates:
            if min(room(counters, devices, [*held, *new, each]).values()) >= 0:
                new.append(each)
        return new

    held = added([], random.sample([*devices], random.randint(0, len(devices))))
    cache = filled(a_slice(counters=counters, **devices))
    if held:
        cache.on_claim(None, a_claim("notebook", *held, extended=False))
    expected = added(held, (each for each in sorted(devices) if each not in held))
    assert free(cache) == expected
    assert usable(cache) == len(expected)


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
    foreign, ours = a_claim("notebook", "a", extended=False), a_claim("pod-gpus", "b", owner="ours")
    assert cache.on_claim(None, foreign) == {"node-0"}
    cache.on_claim(None, ours)
    cache.on_claim(None, a_claim("admin", "c", adminAccess=True))
    assert usable(cache, ours=1) == 3
    assert free(cache) == ["c", "d"]
    assert cache.on_claim(foreign, None) == {"node-0"}
    assert free(cache) == ["a", "c", "d"]


def test_a_list_that_shows_the_next_holder_before_the_last_one_frees_no_device() -> None:
    cache, before = filled(a_slice(gpu_0={}, gpu_1={})), a_claim("z", "gpu-0", extended=False)
    cache.on_claim(None, before)
    cache.on_claim(None, a_claim("a", "gpu-0", extended=False))
    cache.on_claim(before, a_claim("z", extended=False))
    assert (free(cache), usable(cache)) == (["gpu-1"], 1)


@pytest.mark.parametrize(
    ("owner", "requests", "there"),
    [
        ("", {"notebook": 1}, 2),
        ("unknown", {"notebook": 1}, 2),
        ("notebook", {"notebook": 0}, 2),
        ("notebook", {"notebook": 1}, 3),
        ("notebook", {"notebook": 8}, 4),
    ],
)
def test_a_claim_hides_no_more_devices_than_its_pod_requests(
    owner: str, requests: dict[str, int], there: int
) -> None:
    """Anybody may write the annotation, and name a pod as the claim's owner."""
    cache = filled(a_slice(a={}, b={}, c={}, d={}))
    cache.on_claim(None, a_claim("forged", "a", "b", owner=owner))
    assert usable(cache, **requests) == there


def test_devices_of_a_member_that_is_not_bound_yet_are_its_place_s() -> None:
    cache, key = filled(a_slice(a={}, b={}, c={}, d={})), Key("team", "pod-gpus")
    cache.assume(key, (DeviceName(DRIVER, "node-0", "a"),))
    claim = a_claim("pod-gpus", "a", owner="ours")
    cache.on_claim(a_claim("pod-gpus"), claim)
    forged = a_claim("forged", "b", "c", owner="ours")
    cache.on_claim(None, forged)
    assert usable(cache) == usable(cache, ours=1) == 2
    cache.on_claim(forged, None)
    cache.on_claim(claim, None)
    assert usable(cache) == 4
    cache.on_claim(None, claim)
    assert usable(cache) == 3


def test_a_node_counts_the_devices_that_a_pod_has_beside_its_requests() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.nodes.on_node(None, node_view())
    by_claims = pool_view()
    by_claims.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    state.on_pool(None, by_claims)
    state.nodes.devices.on_slice(None, a_slice(a={}, b={}, c={}, d={}))
    state.nodes.devices.on_claim(None, a_claim("own", "a", "b", owner="notebook"))
    state.on_pod(None, foreign_pod("notebook", gpus=1))
    (node,) = state.scheduling.snapshot(now=0.0).nodes
    assert (node.allocatable.gpus, node.used.gpus) == (3, 1)


def test_what_was_written_and_not_seen_is_given_to_nobody_else() -> None:
    cache, key = filled(a_slice(a={}, b={})), Key("team", "pod-gpus")
    cache.assume(key, (DeviceName(DRIVER, "node-0", "a"),))
    assert free(cache) == ["b"]
    cache.on_claim(None, a_claim("pod-gpus"))  # made, not allocated: an earlier version
    assert free(cache) == ["b"]
    cache.on_claim(a_claim("pod-gpus"), a_claim("pod-gpus", "a"))
    assert cache.assumed(key) == ()
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
    by_claims.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    state.on_pool(plain, by_claims)
    (node,) = state.scheduling.snapshot(now=0.0).nodes
    assert (node.allocatable.gpus, node.hides_gpus) == (2, False)


def test_a_pool_of_devices_that_nobody_publishes_says_that_they_are_not_counted() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.nodes.on_node(None, node_view())
    by_claims = pool_view()
    by_claims.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
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


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        (None, ["a", "b"]),
        ({}, []),
        ({"driver": DRIVER}, []),
        ({"driver": "gpu.example.com"}, ["a", "b"]),
        ({"pool": "node-0", "device": "a"}, ["b"]),
        ({"pool": "node-1"}, ["a", "b"]),
        ({"driver": DRIVER, "device": "c"}, ["a", "b"]),
    ],
)
def test_a_taint_rule_is_about_the_devices_that_all_of_its_selector_names(
    selector: dict[str, str] | None, left: list[str]
) -> None:
    cache = filled(a_slice(a={}, b={}))
    rule = a_rule() if selector is None else a_rule(deviceSelector=selector)
    assert cache.on_taint_rule(None, rule) == (set() if left == ["a", "b"] else {"node-0"})
    assert free(cache) == left


def test_a_taint_rule_that_changes_or_goes_frees_its_devices() -> None:
    cache = filled(a_slice(a={}, b={}))
    first, later = (a_rule(deviceSelector={"device": each}) for each in ("a", "b"))
    cache.on_taint_rule(None, first)
    assert cache.on_taint_rule(first, later) == {"node-0"}
    assert free(cache) == ["a"]
    assert cache.on_taint_rule(later, None) == {"node-0"}
    assert free(cache) == ["a", "b"]


def test_an_administrator_who_wants_pods_off_a_device_announces_a_disruption() -> None:
    nodes = NodeCache(clock=lambda: 0.0)
    nodes.on_node(None, node_view())
    nodes.devices.on_slice(None, a_slice(a={}))
    gentle = a_rule(taint={**XID, "effect": "None"}, deviceSelector={})
    nodes.devices_changed(nodes.devices.on_taint_rule(None, gentle))
    assert not list(nodes.disruptions())
    nodes.devices_changed(nodes.devices.on_taint_rule(gentle, a_rule(deviceSelector={})))
    (disruption,) = nodes.disruptions()
    assert (disruption.kind, disruption.source) == (DisruptionKind.HARDWARE, XID["key"])


CHANNELS = "compute-domain.nvidia.com"


def channels(*numbers: int) -> DeviceSliceView:
    """As the driver publishes them, beside the device of its daemons."""
    named = [("channel", each) for each in numbers] + [("daemon", 0)]
    devices = [
        {
            "name": f"{kind}-{number}",
            "attributes": {"type": {"string": kind}, "id": {"int": number}},
        }
        for kind, number in named
    ]
    spec = {"driver": CHANNELS, "nodeName": "node-0", "pool": {"name": "node-0"}}
    return slice_of({"metadata": {"name": "c"}, "spec": {**spec, "devices": devices}})


def channel_claim(*, owner: str, device: str = "", **changed: Any) -> ResourceClaimView:
    """As Kubernetes makes it of the driver's template.

    Args:
        owner: the uid of its pod.
        device: what it has; empty: nothing.
        **changed: of the spec's `devices`, other requests or config.
    """
    parameters = {"kind": "ComputeDomainChannelConfig", "domainID": "domain"}
    devices = {
        "requests": [
            {
                "name": "channel",
                "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"},
            }
        ],
        "config": [{"opaque": {"driver": CHANNELS, "parameters": parameters}}],
    }
    result = {"request": "channel", "driver": CHANNELS, "pool": "node-0", "device": device}
    document = {
        "metadata": {
            "namespace": "team",
            "name": f"{owner}-drumline-channel-x7",
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
        "spec": {"devices": devices | changed},
        "status": {"allocation": {"devices": {"results": [result]}}} if device else {},
    }
    return device_codec.resource_claim(json.dumps(document).encode())


def test_a_node_has_the_channel_that_pods_may_claim_and_no_other() -> None:
    cache = filled(channels(0, 1, 2))
    assert [each.device for each in cache.free_channels("node-0")] == ["channel-0"]
    assert cache.channels("node-0", pods=()) == 1
    assert cache.channels("node-1", pods=()) == 0
    rule = a_rule(deviceSelector={"driver": CHANNELS})
    cache.on_taint_rule(None, rule)
    assert cache.channels("node-0", pods=()) == 0


def a_user(name: str = "ours", *, claim: str = "") -> PodView:
    """A pod that names a claim of a channel.

    Args:
        name: of it, and its uid.
        claim: the one that Kubernetes says is its; empty: none yet.
    """
    return msgspec.structs.replace(
        foreign_pod(name, gpus=1),
        namespace="team",
        requests={RESOURCE_CHANNEL: 1},
        channel_claim=claim,
    )


def test_the_channel_of_somebody_else_is_not_there_and_that_of_a_member_is_used() -> None:
    cache = filled(channels(0))
    bare, held = channel_claim(owner="ours"), channel_claim(owner="ours", device="channel-0")
    cache.on_claim(None, bare)
    cache.on_claim(bare, held)
    assert not cache.free_channels("node-0")
    ours = a_user(claim=held.name)
    elsewhere = msgspec.structs.replace(ours, namespace="elsewhere")
    assert cache.channels("node-0", pods=[ours]) == 1
    assert cache.channels("node-0", pods=[elsewhere]) == 0
    assert cache.counted(ours, node="node-0").requests == {RESOURCE_CHANNEL: 1}
    assert cache.counted(elsewhere, node="node-0").requests == {RESOURCE_CHANNEL: 0}
    cache.on_claim(held, None)
    assert cache.channels("node-0", pods=()) == 1


PLAIN = {"deviceClassName": "compute-domain-default-channel.nvidia.com"}
GPU = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}


@pytest.mark.parametrize(
    "changed",
    [
        {"requests": []},
        {"requests": [GPU]},
        {"requests": [{"name": "channel", "exactly": PLAIN}, GPU]},
        {"requests": [{"name": "channel", "exactly": {**PLAIN, "count": 2}}]},
        {"requests": [{"name": "channel", "exactly": {**PLAIN, "adminAccess": True}}]},
        {"requests": [{"name": "channel", "exactly": {**PLAIN, "allocationMode": "All"}}]},
        {"requests": [{"name": "channel", "exactly": {**PLAIN, "selectors": [{"cel": {}}]}}]},
        {"requests": [{"name": "channel", "firstAvailable": [PLAIN]}]},
        {"config": []},
        {"config": [{"opaque": {"driver": DRIVER, "parameters": {}}}]},
        {"config": [{"opaque": {"driver": CHANNELS, "parameters": {"kind": "Other"}}}]},
        {"config": [{"opaque": {"driver": CHANNELS, "parameters": [1]}}]},
    ],
)
def test_a_claim_that_asks_for_anything_but_one_channel_is_no_claim_of_one(
    changed: dict[str, Any],
) -> None:
    assert channel_claim(owner="ours").channel is not None
    assert channel_claim(owner="ours", **changed).channel is None


def test_a_pod_takes_the_channel_of_its_node_by_having_it_and_not_by_naming_it() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.nodes.on_node(None, node_view())
    state.on_pool(None, pool_view())
    state.nodes.devices.on_slice(None, channels(0))
    held = channel_claim(owner="ours", device="channel-0")
    waiting, running = a_user(), a_user(claim=held.name)
    state.on_pod(None, waiting)
    (node,) = state.scheduling.snapshot(now=0.0).nodes
    assert (node.allocatable.extended, node.used.extended) == (((RESOURCE_CHANNEL, 1),), ())
    state.nodes.devices.on_claim(None, held)
    state.on_pod(waiting, running)
    (node,) = state.scheduling.snapshot(now=0.0).nodes
    assert node.allocatable.extended == node.used.extended == ((RESOURCE_CHANNEL, 1),)


def test_kubernetes_says_in_the_status_of_a_pod_which_claim_is_its() -> None:
    named = [
        {"name": "other", "resourceClaimName": "x"},
        {"name": "drumline-channel", "resourceClaimName": "llama-0-g1-drumline-channel-k2v"},
    ]
    pod = {
        "metadata": {"name": "llama-0-g1", "namespace": "team", "uid": "u"},
        "spec": {"containers": [], "resourceClaims": [{"name": "drumline-channel"}]},
        "status": {"resourceClaimStatuses": named},
    }
    view = codec.pod(json.dumps(pod).encode())
    assert view.channel_claim == "llama-0-g1-drumline-channel-k2v"
    assert view.requests[RESOURCE_CHANNEL] == 1
