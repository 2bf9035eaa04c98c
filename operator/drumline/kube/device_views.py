"""Views of Dynamic Resource Allocation: devices of nodes, and the claims that hold them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from drumline_api.objects import builtin


class DeviceName(NamedTuple):
    """Name of a device in the cluster."""

    driver: str
    pool: str
    device: str


Counters = tuple[tuple[str, str, int], ...]
"""Amounts of the counters of a pool of devices, by counter set and name, in thousandths."""


class DeviceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One device of a slice.

    Attributes:
        name: Its name in the pool.
        kind: Its attribute `type`: gpu, mig, channel, ...; empty where it has none.
        number: Its attribute `id`, -1 where it has none.
        is_shared: Whether several claims may have it at once.
        taints: What a claim must tolerate.
        consumes: Counters that it takes. A whole device and its parts take from the same ones.
        is_attached_later: Whether it exists only some time after it was allocated
            (`bindingConditions`).
    """

    name: str
    kind: str = ""
    number: int = -1
    is_shared: bool = False
    taints: tuple[builtin.Taint, ...] = ()
    consumes: Counters = ()
    is_attached_later: bool = False


class DeviceSliceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ResourceSlice.

    Attributes:
        driver: Who publishes it.
        pool: The pool of devices that it is a part of.
        generation: Of the pool; slices of an earlier one count no more.
        slices: How many slices the pool has in this generation.
        node_name: The only node that has the devices; empty: several may reach them.
        devices: The devices.
        counters: The counters of the pool that this slice lists.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    driver: str
    pool: str
    # Slices are replaced one by one, so two generations can be visible for a moment.
    generation: int = 0
    slices: int = 1
    node_name: str = ""
    devices: tuple[DeviceView, ...] = ()
    counters: Counters = ()


class DeviceTaintRuleView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One DeviceTaintRule: a taint that an administrator puts on devices.

    Attributes:
        taint: What the devices get.
        driver: Only devices of this driver; None: of any.
        pool: Only devices of pools of this name; None: of any.
        device: Only devices of this name; None: of any.
        selects: Whether it names devices at all; one without a selector names none.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    taint: builtin.Taint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    selects: bool = True

    def matches(self, name: DeviceName) -> bool:
        """Return whether the device has the taint."""
        wanted = ((self.driver, name.driver), (self.pool, name.pool), (self.device, name.device))
        # None in a selector matches every value, as in the API.
        return self.selects and all(value in (None, actual) for value, actual in wanted)


class ChannelRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Request of a claim for one channel of a ComputeDomain, and for nothing else.

    Attributes:
        request: name of the request in the claim.
        domain: uid of the ComputeDomain.
        parameters: parameters for the driver, as JSON.
    """

    request: str
    domain: str
    parameters: bytes


class ResourceClaimView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ResourceClaim.

    Attributes:
        owner_uid: The uid of its controller, empty if it has none.
        devices: What is allocated to it; empty: nothing yet.
        is_extended: Whether it stands for an extended resource that its pod requests (KEP-5004).
        channel: The channel that it asks for; None: something else.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str = ""
    # A claim without an allocation holds nothing. Its pod is still waiting.
    devices: tuple[DeviceName, ...] = ()
    is_extended: bool = False
    channel: ChannelRequest | None = None
