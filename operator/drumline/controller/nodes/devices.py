"""Devices that drivers publish for Dynamic Resource Allocation, and the claims that hold them.

A node's usable devices of a driver are whole devices in complete pools of the newest generation.
They are not tainted, by the driver or by an administrator's DeviceTaintRule. They are not held by a
claim that somebody else allocated, and no part of them is (KEP-4815).

Claims of extended resources (KEP-5004) belong to pods that request the resource, so the pods'
requests already count them. Any claim can pretend to be one. So at most as many devices of a pod's
claims count as requested as the pod requests. The others count as held by somebody else.

    node n, 8 devices, 1 tainted, 2 held by a notebook's claim, 4 by pods of ours
    usable: 5, of which the requests of our pods take 4
    the notebook's claim pretends to be of an extended resource: still 5
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from drumline.kube.device_codec import CHANNEL_DRIVER
from drumline.kube.device_views import (
    DeviceName,
    DeviceSliceView,
    DeviceTaintRuleView,
    DeviceView,
    ResourceClaimView,
)
from drumline.kube.views import Key, PodView
from drumline_api.base import RESOURCE_CHANNEL
from drumline_api.objects import builtin

_WHOLE = frozenset({"", "gpu"})
"""Values of the attribute `type` of whole devices. Others, such as mig and vfio, are parts."""
_HARD = frozenset({"NoSchedule", "NoExecute"})


class _Published(NamedTuple):
    """A device, its published attributes, and the taints of its driver and of rules."""

    name: DeviceName
    view: DeviceView
    taints: tuple[builtin.Taint, ...]


class DeviceCache:
    """Devices and claims. For one event loop. All queries are O(devices of the node)."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, DeviceSliceView]] = {}
        """Keyed by node and name of the slice."""
        self._nodes: dict[tuple[str, str], set[str]] = {}
        """Nodes that have devices of a driver and pool."""
        self._taint_rules: dict[str, DeviceTaintRuleView] = {}
        self._claims: dict[Key, ResourceClaimView] = {}
        self._holders: dict[DeviceName, ResourceClaimView] = {}
        self._assumed: dict[Key, tuple[DeviceName, ...]] = {}
        """Allocations that were written, but that no watch has reported yet, by claim."""
        self._allocated: set[Key] = set()
        """Claims that this process allocated. Only members' claims."""

    def on_slice(self, old: DeviceSliceView | None, new: DeviceSliceView | None) -> set[str]:
        """Process an event of a ResourceSlice. Return the nodes whose devices it concerns."""
        # A slice may move to another node with an update.
        for view in (old, new):
            if view is not None:
                self._remove_slice(view)
        if new is not None:
            self._slices.setdefault(new.node_name, {})[new.name] = new
            self._nodes.setdefault((new.driver, new.pool), set()).add(new.node_name)
        return {view.node_name for view in (old, new) if view is not None and view.node_name}

    def _remove_slice(self, view: DeviceSliceView) -> None:
        """Forget a slice, and the names that only it has. Autoscalers name each node anew."""
        slices = self._slices.get(view.node_name, {})
        slices.pop(view.name, None)
        if not slices:
            self._slices.pop(view.node_name, None)
        source = view.driver, view.pool
        if not any((each.driver, each.pool) == source for each in slices.values()):
            nodes = self._nodes.get(source, set())
            nodes.discard(view.node_name)
            if not nodes:
                self._nodes.pop(source, None)

    def on_taint_rule(
        self, old: DeviceTaintRuleView | None, new: DeviceTaintRuleView | None
    ) -> set[str]:
        """Process an event of a DeviceTaintRule. Return the nodes whose devices it concerns.

        O(devices of the cluster). Administrators write few rules, and rarely.
        """
        rules = [view for view in (old, new) if view is not None]
        # Both versions: a rule that was narrowed releases devices.
        for view in rules:
            self._taint_rules.pop(view.name, None)
        if new is not None:
            self._taint_rules[new.name] = new
        return {
            node
            for node in self._slices
            if node
            for each in self._published(node)
            if any(rule.matches(each.name) for rule in rules)
        }

    def on_claim(self, old: ResourceClaimView | None, new: ResourceClaimView | None) -> set[str]:
        """Process an event of a ResourceClaim. Return the nodes of its old and new devices."""
        view = new or old
        if view is None:
            return set()
        # Phase 1: replace the claim and its holders.
        key = Key(view.namespace, view.name)
        for device in old.devices if old is not None else ():
            # A whole list may show the next holder of the device before this claim.
            if _key_of(self._holders.get(device)) == key:
                del self._holders[device]
        self._claims.pop(key, None)
        if new is not None:
            self._claims[key] = new
            self._holders |= dict.fromkeys(new.devices, new)
        # Phase 2: the watch shows the devices, or the claim is gone. The assumption is settled.
        if new is None or new.devices:
            self._assumed.pop(key, None)
        if new is None:
            self._allocated.discard(key)
        # Phase 3: nodes of the devices. A claim names driver and pool, not the node.
        named = {device for each in (old, new) if each is not None for device in each.devices}
        known = (self._nodes.get((device.driver, device.pool), set()) for device in named)
        return {node for nodes in known for node in nodes if node}

    @property
    def are_known(self) -> bool:
        """Return whether any driver publishes devices."""
        return bool(self._slices)

    def claim(self, key: Key) -> ResourceClaimView | None:
        """Return a claim as last seen, or None."""
        return self._claims.get(key)

    def drivers(self, node: str) -> set[str]:
        """Return the drivers that publish whole devices of a node."""
        return {each.name.driver for each in self._published(node) if each.view.kind in _WHOLE}

    def usable(self, node: str, *, driver: str, requests: Mapping[str, int]) -> int:
        """Return the number of devices that pods of extended resources may hold, or hold.

        Args:
            node: name of the node.
            driver: driver of the devices.
            requests: number of devices that each pod there requests, by uid. Members that are not
                bound yet may be missing.
        """
        # Each pod is credited with as many devices as it requests, not more (see the module).
        left, divided = dict(requests), self._divided(node)
        usable = 0
        for device in self._untainted(node, driver=driver):
            holder = self._holders.get(device)
            if holder is None:
                usable += device not in divided
            elif holder.is_extended and holder.owner_uid in left:
                usable += left[holder.owner_uid] > 0
                left[holder.owner_uid] -= 1
            # A claim of ours whose pod is not bound yet has no requests on the node.
            elif Key(holder.namespace, holder.name) in self._allocated:
                usable += 1
        return usable

    def channels(self, node: str, *, pods: Collection[PodView]) -> int:
        """Return the number of channels that pods of jobs may hold, or hold.

        Args:
            node: name of the node.
            pods: the pods of the node.
        """
        claims = {Key(pod.namespace, pod.channel_claim) for pod in pods if pod.channel_claim}
        holders = [self._claim_with(channel) for channel in self._channels(node)]
        return sum(key is None or key in claims or key in self._allocated for key in holders)

    def counted(self, pod: PodView, *, node: str) -> PodView:
        """Return the pod with a request for the channel that it holds.

        A pod may name a claim of a channel without holding one.
        """
        if RESOURCE_CHANNEL not in pod.requests:
            return pod
        holders = [self._claim_with(channel) for channel in self._channels(node)]
        has_channel = Key(pod.namespace, pod.channel_claim) in holders
        requests = {**pod.requests, RESOURCE_CHANNEL: int(has_channel)}
        return msgspec.structs.replace(pod, requests=requests)

    def _claim_with(self, device: DeviceName) -> Key | None:
        return _key_of(self._holders.get(device))

    def free_channels(self, node: str) -> list[DeviceName]:
        """Return the channels of a node that no claim holds."""
        return self._free(self._channels(node))

    def free(self, node: str, *, driver: str) -> list[DeviceName]:
        """Return the devices of a node that no claim holds, sorted by name."""
        return self._free(set(self._untainted(node, driver=driver)) - self._divided(node))

    def _free(self, devices: Iterable[DeviceName]) -> list[DeviceName]:
        return sorted(set(devices) - self._taken())

    def _divided(self, node: str) -> set[DeviceName]:
        """Return the devices that share counters with another device that a claim holds.

        A driver publishes a GPU and its partitions side by side. One of them uses up the counters
        of the whole GPU.
        """
        counters = [
            (each.name, (each.name.driver, each.name.pool, counters))
            for each in self._published(node)
            for counters in each.view.counter_sets
        ]
        taken = self._taken() if counters else set[DeviceName]()
        held: dict[tuple[str, str, str], set[DeviceName]] = defaultdict(set)
        for name, key in counters:
            if name in taken:
                held[key].add(name)
        return {name for name, key in counters if held.get(key, set()) - {name}}

    def _taken(self) -> set[DeviceName]:
        """Return the devices of claims. Assumed ones are taken, although no watch shows it yet."""
        return self._holders.keys() | {name for names in self._assumed.values() for name in names}

    def taints(self, node: str) -> Iterable[builtin.Taint]:
        """Return the taints of the node's whole GPU devices, each taint once."""
        named: Mapping[tuple[str, str, str], builtin.Taint] = {
            (taint.key, taint.value, taint.effect): taint
            for each in self._published(node)
            if each.view.kind in _WHOLE and _is_gpu(each.name.driver)
            for taint in each.taints
        }
        return named.values()

    def assume(self, key: Key, devices: tuple[DeviceName, ...]) -> None:
        """Reserve devices for an allocation that is being written for a member.

        Once the watch shows the allocation, the member holds them, even before its pod is bound.
        """
        self._assumed[key] = devices
        self._allocated.add(key)

    def assumed(self, key: Key) -> tuple[DeviceName, ...]:
        """Return the devices of a write for this claim that was not seen yet, or ()."""
        return self._assumed.get(key, ())

    def forget(self, key: Key) -> None:
        """Release the reservation of a write that did not take effect."""
        self._assumed.pop(key, None)
        self._allocated.discard(key)

    def _untainted(self, node: str, *, driver: str) -> list[DeviceName]:
        return [
            each.name
            for each in self._published(node)
            if each.name.driver == driver and each.view.kind in _WHOLE and _is_usable(each)
        ]

    def _channels(self, node: str) -> list[DeviceName]:
        """Return the channels that the driver's device class selects: number 0 of the node."""
        return [
            each.name
            for each in self._published(node)
            if each.name.driver == CHANNEL_DRIVER
            and each.view.kind == "channel"
            and each.view.number == 0
            and _is_usable(each)
        ]

    def _published(self, node: str) -> list[_Published]:
        """Return the devices of the node's complete pools in their newest generation."""
        pools: dict[tuple[str, str], list[DeviceSliceView]] = defaultdict(list)
        for view in self._slices.get(node, {}).values():
            pools[view.driver, view.pool].append(view)
        published: list[_Published] = []
        for (driver, pool), slices in pools.items():
            # A driver replaces a pool by slices of a higher generation. Until all of them are
            # there, its devices are unknown, so none of them count.
            newest = max(each.generation for each in slices)
            current = [each for each in slices if each.generation == newest]
            if len(current) == current[0].slices:
                published += (
                    self._with_taints(DeviceName(driver, pool, device.name), device)
                    for each in current
                    for device in each.devices
                )
        return published

    def _with_taints(self, name: DeviceName, view: DeviceView) -> _Published:
        rules = (rule.taint for rule in self._taint_rules.values() if rule.matches(name))
        return _Published(name, view, (*view.taints, *rules))


def _key_of(claim: ResourceClaimView | None) -> Key | None:
    return None if claim is None else Key(claim.namespace, claim.name)


def _is_usable(device: _Published) -> bool:
    return not device.view.is_shared and not any(taint.effect in _HARD for taint in device.taints)


def _is_gpu(driver: str) -> bool:
    """Return whether a driver is one of GPUs: named gpu.VENDOR, or gaudi.intel.com."""
    return driver.startswith(("gpu.", "gaudi."))
