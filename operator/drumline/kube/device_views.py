"""What the caches keep of Dynamic Resource Allocation: devices of nodes, and who has them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from drumline.kube.views import TaintView


class DeviceName(NamedTuple):
    """What names a device in the cluster."""

    driver: str
    pool: str
    device: str


class DeviceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One device of a slice.

    Attributes:
        name: Its name in the pool.
        kind: Its attribute `type`: gpu, mig, ...; empty where it has none.
        is_shared: Whether several claims may have it at once.
        taints: What a claim must tolerate.
    """

    name: str
    kind: str = ""
    is_shared: bool = False
    taints: tuple[TaintView, ...] = ()


class DeviceSliceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ResourceSlice.

    Attributes:
        driver: Who publishes it.
        pool: The pool of devices that it is a part of.
        generation: Of the pool; slices of an earlier one count no more.
        slices: How many slices the pool has in this generation.
        node_name: The only node that has the devices; empty: several may reach them.
        devices: The devices.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    driver: str
    pool: str
    generation: int = 0
    slices: int = 1
    node_name: str = ""
    devices: tuple[DeviceView, ...] = ()


class ResourceClaimView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ResourceClaim.

    Attributes:
        owner_uid: The uid of its controller, empty if it has none.
        devices: What is allocated to it; empty: nothing yet.
        is_extended: Whether it stands for an extended resource that its pod requests (KEP-5004).
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str = ""
    devices: tuple[DeviceName, ...] = ()
    is_extended: bool = False
