"""From the API server's JSON to views of resource.k8s.io/v1, as `codec` does for other kinds.

Only what decides about whole devices of a single node is read. Counters that devices share,
attributes but `type`, and how much of a device is consumed are not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.kube import wire
from drumline.kube.codec import decoded, taint_view
from drumline.kube.device_views import DeviceName, DeviceSliceView, DeviceView, ResourceClaimView

EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that stands for an extended resource."""


class _DeviceWire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class _DeviceAttribute(_DeviceWire, frozen=True, gc=False):
    string: str | None = None


class _Device(_DeviceWire, frozen=True, gc=False):
    name: str
    attributes: dict[str, _DeviceAttribute] | None = None
    taints: list[wire.Taint] | None = None
    allow_multiple_allocations: bool | None = None


class _Pool(_DeviceWire, frozen=True, gc=False):
    name: str
    generation: int = 0
    resource_slice_count: int = 1


class _WireSliceSpec(_DeviceWire, frozen=True, gc=False):
    driver: str
    pool: _Pool
    node_name: str | None = None
    devices: list[_Device] | None = None


class _WireSlice(_DeviceWire, frozen=True, gc=False):
    metadata: wire.Metadata
    spec: _WireSliceSpec


class _Result(_DeviceWire, frozen=True, gc=False):
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None


class _Results(_DeviceWire, frozen=True, gc=False):
    results: list[_Result] | None = None


class _Allocation(_DeviceWire, frozen=True, gc=False):
    devices: _Results | None = None


class _WireClaimStatus(_DeviceWire, frozen=True, gc=False):
    allocation: _Allocation | None = None


class _WireClaim(_DeviceWire, frozen=True, gc=False):
    metadata: wire.Metadata
    status: _WireClaimStatus = _WireClaimStatus()


_slice_decoder: Final = msgspec.json.Decoder(_WireSlice)
_claim_decoder: Final = msgspec.json.Decoder(_WireClaim)


def device_slice(raw: bytes | msgspec.Raw) -> DeviceSliceView:
    """One ResourceSlice.

    Raises:
        Undecodable: It is not one.
    """
    document = decoded(_slice_decoder, raw)
    metadata, spec = document.metadata, document.spec
    return DeviceSliceView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        driver=spec.driver,
        pool=spec.pool.name,
        generation=spec.pool.generation,
        slices=spec.pool.resource_slice_count,
        node_name=spec.node_name or "",
        devices=tuple(map(_device_view, spec.devices or ())),
    )


def resource_claim(raw: bytes | msgspec.Raw) -> ResourceClaimView:
    """One ResourceClaim. Devices for administrators, which others have too, are left out.

    Raises:
        Undecodable: It is not one.
    """
    document = decoded(_claim_decoder, raw)
    metadata, allocation = document.metadata, document.status.allocation
    results = (allocation.devices.results if allocation and allocation.devices else None) or ()
    owners = (owner.uid for owner in metadata.owner_references or () if owner.controller)
    return ResourceClaimView(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        owner_uid=next(owners, ""),
        devices=tuple(
            DeviceName(result.driver, result.pool, result.device)
            for result in results
            if not result.admin_access
        ),
        is_extended=(metadata.annotations or {}).get(EXTENDED_CLAIM) == "true",
    )


def _device_view(device: _Device) -> DeviceView:
    kind = (device.attributes or {}).get("type")
    return DeviceView(
        name=device.name,
        kind=(kind.string if kind is not None else None) or "",
        is_shared=bool(device.allow_multiple_allocations),
        taints=tuple(map(taint_view, device.taints or ())),
    )
