"""Devices that drivers publish for Dynamic Resource Allocation, and the claims that hold them.

A node's usable devices of a driver are whole devices in complete pools of the newest generation.
They are not tainted, by the driver or by an administrator's DeviceTaintRule. They are not held by a
claim that somebody else allocated, and the counters of their pool have room for them: a partition
takes from the same counters as its device (KEP-4815). A device with `bindingConditions` is not
usable: the pods would start before it is attached (KEP-5007).

Claims of extended resources (KEP-5004) belong to pods that request the resource, so the pods'
requests already count them. Any claim can pretend to be one. So at most as many devices of a pod's
claims count as requested as the pod requests. The others count as held by somebody else.

    node n, 8 devices, 1 tainted, 2 held by a notebook's claim, 4 by pods of ours
    usable: 5, of which the requests of our pods take 4
    the notebook's claim pretends to be of an extended resource: still 5
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
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


_Source = tuple[str, str]
"""Driver and name of a pool of devices."""
_Left = dict[tuple[str, str, str, str], int]
"""Amount that is left of each counter, by driver, pool, set and name."""


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
        self._nodes: dict[_Source, set[str]] = {}
        """Nodes that have devices of a driver and pool."""
        self._pools: dict[_Source, tuple[DeviceSliceView, ...]] = {}
        """Slices of pools, of all nodes, until one changes. Empty: the pool cannot be used."""
        self._taint_rules: dict[str, DeviceTaintRuleView] = {}
        self._claims: dict[Key, ResourceClaimView] = {}
        self._holders: dict[DeviceName, ResourceClaimView] = {}
        self._assumed: dict[Key, tuple[DeviceName, ...]] = {}
        """Allocations that were written, but that no watch has reported yet, by claim."""
        self._allocated: set[Key] = set()
        """Claims that this process allocated. Only members' claims."""

    def on_slice(self, old: DeviceSliceView | None, new: DeviceSliceView | None) -> set[str]:
        """Process an event of a ResourceSlice. Return the nodes whose devices it concerns."""
        views = [view for view in (old, new) if view is not None]
        before = {source: self._shared_by(source) for source in set(map(_source_of, views))}
        # A slice may move to another node with an update.
        for view in views:
            self._remove_slice(view)
        if new is not None:
            self._slices.setdefault(new.node_name, {})[new.name] = new
            self._nodes.setdefault(_source_of(new), set()).add(new.node_name)
        names = {view.node_name for view in views}
        for source, shared in before.items():
            self._pools.pop(source, None)
            # The first or last slice of a pool decides about the devices in its other slices.
            if self._shared_by(source) != shared:
                names |= self._nodes.get(source, set())
        return names - {""}

    def _shared_by(self, source: _Source) -> object:
        """Return what a slice tells about the devices in other slices of its pool."""
        pool = self._pool(source)
        return [each.counters for each in pool if each.counters], pool[:1] and pool[0].generation

    def _remove_slice(self, view: DeviceSliceView) -> None:
        """Forget a slice, and the names that only it has. Autoscalers name each node anew."""
        slices = self._slices.get(view.node_name, {})
        slices.pop(view.name, None)
        if not slices:
            self._slices.pop(view.node_name, None)
        source = _source_of(view)
        if not any(_source_of(each) == source for each in slices.values()):
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
        left, counters = dict(requests), self._left(node)
        assumed = self._assumed_names()
        usable = 0
        for device in self._untainted(node, driver=driver):
            holder = self._holders.get(device.name)
            if holder is None:
                usable += device.name in assumed or _takes(device, counters)
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
        return sorted(set(self._channels(node)) - self._taken())

    def free(self, node: str, *, driver: str) -> list[DeviceName]:
        """Return the devices of a node that no claim holds, sorted by name."""
        taken, counters = self._taken(), self._left(node)
        return [
            device.name
            for device in self._untainted(node, driver=driver)
            if device.name not in taken and _takes(device, counters)
        ]

    def _left(self, node: str) -> _Left:
        """Return what the devices of claims leave of the counters of a node's pools."""
        pools = [pool for pool in self._pools_of(node) if any(each.counters for each in pool)]
        taken = self._taken() if pools else set[DeviceName]()
        left: _Left = {}
        for each in chain.from_iterable(pools):
            for name, counter, amount in each.counters:
                left[each.driver, each.pool, name, counter] = amount
        for each in chain.from_iterable(pools):
            for device in each.devices:
                name = DeviceName(each.driver, each.pool, device.name)
                for key, amount in _consumed(name, device) if name in taken else ():
                    left[key] -= amount
        return left

    def _taken(self) -> set[DeviceName]:
        """Return the devices of claims. Assumed ones are taken, although no watch shows it yet."""
        return self._holders.keys() | self._assumed_names()

    def _assumed_names(self) -> set[DeviceName]:
        return {name for names in self._assumed.values() for name in names}

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

    def _untainted(self, node: str, *, driver: str) -> list[_Published]:
        """Return the whole devices of a driver that may be used, sorted by name."""
        devices = [
            each
            for each in self._published(node)
            if each.name.driver == driver and each.view.kind in _WHOLE and _is_usable(each)
        ]
        return sorted(devices, key=lambda each: each.name)

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
        return [
            self._with_taints(DeviceName(each.driver, each.pool, device.name), device)
            for each in chain.from_iterable(self._pools_of(node))
            if each.node_name == node
            for device in each.devices
        ]

    def _pools_of(self, node: str) -> Iterable[tuple[DeviceSliceView, ...]]:
        """Return the pools that have devices of a node."""
        return map(self._pool, dict.fromkeys(map(_source_of, self._slices.get(node, {}).values())))

    def _pool(self, source: _Source) -> tuple[DeviceSliceView, ...]:
        """Return the slices of a pool, of all nodes. Empty: its devices are not known."""
        known = self._pools.get(source)
        if known is None and source in self._nodes:
            known = self._pools[source] = _complete(
                view
                for node in self._nodes[source]
                for view in self._slices[node].values()
                if _source_of(view) == source
            )
        return known or ()

    def _with_taints(self, name: DeviceName, view: DeviceView) -> _Published:
        rules = (rule.taint for rule in self._taint_rules.values() if rule.matches(name))
        return _Published(name, view, (*view.taints, *rules))


def _key_of(claim: ResourceClaimView | None) -> Key | None:
    return None if claim is None else Key(claim.namespace, claim.name)


def _source_of(view: DeviceSliceView) -> _Source:
    return view.driver, view.pool


def _complete(views: Iterable[DeviceSliceView]) -> tuple[DeviceSliceView, ...]:
    """Return the slices of a pool in its newest generation, or none if it cannot be used.

    A driver replaces a pool by slices of a higher generation. Until all of them are there, its
    devices are unknown. kube-scheduler rejects a pool with two devices of one name, or with a
    device that takes from an unknown counter.
    """
    slices = tuple(views)
    newest = max((each.generation for each in slices), default=0)
    current = tuple(each for each in slices if each.generation == newest)
    if not current or len(current) != current[0].slices:
        return ()
    counters = {(name, counter) for each in current for name, counter, _ in each.counters}
    devices = [device for each in current for device in each.devices]
    wanted = {(name, counter) for each in devices for name, counter, _ in each.consumes}
    names = {each.name for each in devices}
    return current if wanted <= counters and len(names) == len(devices) else ()


def _consumed(
    name: DeviceName, device: DeviceView
) -> Iterable[tuple[tuple[str, str, str, str], int]]:
    for counters, counter, amount in device.consumes:
        yield (name.driver, name.pool, counters, counter), amount


def _takes(device: _Published, left: _Left) -> bool:
    """Take the counters of a free device. Return False if they have no room for it."""
    consumed = list(_consumed(device.name, device.view))
    if any(left.get(key, 0) < amount for key, amount in consumed):
        return False
    for key, amount in consumed:
        left[key] -= amount
    return True


def _is_usable(device: _Published) -> bool:
    view = device.view
    return not (
        view.is_shared
        or view.is_attached_later
        or any(taint.effect in _HARD for taint in device.taints)
    )


def _is_gpu(driver: str) -> bool:
    """Return whether a driver is one of GPUs: named gpu.VENDOR, or gaudi.intel.com."""
    return driver.startswith(("gpu.", "gaudi."))
