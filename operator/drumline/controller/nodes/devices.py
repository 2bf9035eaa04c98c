"""The devices of nodes that drivers publish for Dynamic Resource Allocation, and who has them.

A node's usable devices of a driver are those of complete pools in their newest generation that are
whole, are not tainted (by the driver or by an administrator's DeviceTaintRule) and are had by no
claim that somebody else allocated. Claims that stand for
extended resources (KEP-5004) belong to pods that request these, so the pods' requests count them.
Any claim can say that it is one. So of the devices that claims of a pod have, no more are believed
to be counted by its requests than it requests; the others are had by somebody else.

    node n, 8 devices, 1 tainted, 2 had by a claim of a notebook's, 4 by pods of ours
    usable: 5, of which the requests of our pods take 4
    the notebook's claim says that it stands for an extended resource: still 5
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
"""Values of the attribute `type` of whole devices; mig, vfio and others are not."""
_HARD = frozenset({"NoSchedule", "NoExecute"})


class _Published(NamedTuple):
    """A device, what its driver says of it, and its taints: the driver's and those of rules."""

    name: DeviceName
    view: DeviceView
    taints: tuple[builtin.Taint, ...]


class DeviceCache:
    """For one event loop. All questions are O(devices of the node)."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, DeviceSliceView]] = defaultdict(dict)
        """By node and name of the slice."""
        self._nodes: dict[tuple[str, str], set[str]] = defaultdict(set)
        """By driver and pool: nodes that have, or had, devices of it."""
        self._taint_rules: dict[str, DeviceTaintRuleView] = {}
        self._claims: dict[Key, ResourceClaimView] = {}
        self._holders: dict[DeviceName, ResourceClaimView] = {}
        self._assumed: dict[Key, tuple[DeviceName, ...]] = {}
        """By claim: allocations that were written and not seen yet."""
        self._allocated: set[Key] = set()
        """Claims that this process allocated, for members alone."""

    def on_slice(self, old: DeviceSliceView | None, new: DeviceSliceView | None) -> set[str]:
        """Take in an event of a ResourceSlice; returns the nodes whose devices it is about."""
        for view in (old, new):
            if view is not None:
                self._slices[view.node_name].pop(view.name, None)
        if new is not None:
            self._slices[new.node_name][new.name] = new
            self._nodes[new.driver, new.pool].add(new.node_name)
        return {view.node_name for view in (old, new) if view is not None and view.node_name}

    def on_taint_rule(
        self, old: DeviceTaintRuleView | None, new: DeviceTaintRuleView | None
    ) -> set[str]:
        """Take in an event of a DeviceTaintRule; returns the nodes with devices that it is about.

        O(devices of the cluster): administrators write few, and seldom.
        """
        rules = [view for view in (old, new) if view is not None]
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
        """Take in an event of a ResourceClaim; returns the nodes whose devices it has or had."""
        view = new or old
        if view is None:
            return set()
        key = Key(view.namespace, view.name)
        for device in old.devices if old is not None else ():
            self._holders.pop(device, None)
        self._claims.pop(key, None)
        if new is not None:
            self._claims[key] = new
            self._holders |= dict.fromkeys(new.devices, new)
        if new is None or new.devices:
            self._assumed.pop(key, None)
        if new is None:
            self._allocated.discard(key)
        named = {device for each in (old, new) if each is not None for device in each.devices}
        known = (self._nodes.get((device.driver, device.pool), set()) for device in named)
        return {node for nodes in known for node in nodes if node}

    @property
    def are_known(self) -> bool:
        """Whether any driver publishes devices."""
        return any(self._slices.values())

    def claim(self, key: Key) -> ResourceClaimView | None:
        """A claim as last seen."""
        return self._claims.get(key)

    def drivers(self, node: str) -> set[str]:
        """The drivers that publish whole devices of a node."""
        return {each.name.driver for each in self._published(node) if each.view.kind in _WHOLE}

    def usable(self, node: str, *, driver: str, requests: Mapping[str, int]) -> int:
        """How many devices pods of extended resources may have there, or have.

        Args:
            node: its name.
            driver: of the devices.
            requests: how many each pod there requests, by uid. Members that are not bound yet need
                not be among them.
        """
        left = dict(requests)
        usable = 0
        for device in self._untainted(node, driver=driver):
            holder = self._holders.get(device)
            if holder is None:
                usable += 1
            elif holder.is_extended and holder.owner_uid in left:
                usable += left[holder.owner_uid] > 0
                left[holder.owner_uid] -= 1
            elif Key(holder.namespace, holder.name) in self._allocated:
                usable += 1
        return usable

    def channels(self, node: str, *, pods: Collection[PodView]) -> int:
        """How many channels pods of jobs may have there, or have.

        Args:
            node: its name.
            pods: the pods there.
        """
        claims = {Key(pod.namespace, pod.channel_claim) for pod in pods if pod.channel_claim}
        holders = [self._claim_with(channel) for channel in self._channels(node)]
        return sum(key is None or key in claims or key in self._allocated for key in holders)

    def counted(self, pod: PodView, *, node: str) -> PodView:
        """The pod with the channel that it has: one that names a claim of it need not have one."""
        if RESOURCE_CHANNEL not in pod.requests:
            return pod
        holders = [self._claim_with(channel) for channel in self._channels(node)]
        has_channel = Key(pod.namespace, pod.channel_claim) in holders
        requests = {**pod.requests, RESOURCE_CHANNEL: int(has_channel)}
        return msgspec.structs.replace(pod, requests=requests)

    def _claim_with(self, device: DeviceName) -> Key | None:
        holder = self._holders.get(device)
        return None if holder is None else Key(holder.namespace, holder.name)

    def free_channels(self, node: str) -> list[DeviceName]:
        """The channels that nobody has."""
        return self._free(self._channels(node))

    def free(self, node: str, *, driver: str) -> list[DeviceName]:
        """The devices that nobody has, by name."""
        return self._free(self._untainted(node, driver=driver))

    def _free(self, devices: Iterable[DeviceName]) -> list[DeviceName]:
        taken = self._holders.keys() | {name for names in self._assumed.values() for name in names}
        return sorted(set(devices) - taken)

    def taints(self, node: str) -> Iterable[builtin.Taint]:
        """The taints of the whole devices there, each once."""
        named: Mapping[tuple[str, str, str], builtin.Taint] = {
            (taint.key, taint.value, taint.effect): taint
            for each in self._published(node)
            if each.view.kind in _WHOLE and _is_gpu(each.name.driver)
            for taint in each.taints
        }
        return named.values()

    def assume(self, key: Key, devices: tuple[DeviceName, ...]) -> None:
        """An allocation is being written for a member: nobody else gets these devices.

        Once the watch shows it they are the member's, whether its pod is bound or not.
        """
        self._assumed[key] = devices
        self._allocated.add(key)

    def assumed(self, key: Key) -> tuple[DeviceName, ...]:
        """What was allocated to this claim by a write that was not seen yet, if there is one."""
        return self._assumed.get(key, ())

    def forget(self, key: Key) -> None:
        """It was not written after all."""
        self._assumed.pop(key, None)
        self._allocated.discard(key)

    def _untainted(self, node: str, *, driver: str) -> list[DeviceName]:
        return [
            each.name
            for each in self._published(node)
            if each.name.driver == driver and each.view.kind in _WHOLE and _is_usable(each)
        ]

    def _channels(self, node: str) -> list[DeviceName]:
        """Those that the driver's class for pods selects: the first of the node."""
        return [
            each.name
            for each in self._published(node)
            if each.name.driver == CHANNEL_DRIVER
            and each.view.kind == "channel"
            and each.view.number == 0
            and _is_usable(each)
        ]

    def _published(self, node: str) -> list[_Published]:
        """The devices of the node's complete pools, of the newest generation."""
        pools: dict[tuple[str, str], list[DeviceSliceView]] = defaultdict(list)
        for view in self._slices[node].values() if node in self._slices else ():
            pools[view.driver, view.pool].append(view)
        published: list[_Published] = []
        for (driver, pool), slices in pools.items():
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


def _is_usable(device: _Published) -> bool:
    return not device.view.is_shared and not any(taint.effect in _HARD for taint in device.taints)


def _is_gpu(driver: str) -> bool:
    """Drivers of GPUs are named gpu.VENDOR, Intel's of Gaudi gaudi.intel.com."""
    return driver.startswith(("gpu.", "gaudi."))
