"""Decode the API server's JSON to views of resource.k8s.io/v1, as `codec` does for other kinds.

It reads only what decides about whole devices of a single node. It does not read attributes except
`type` and `id`, and partial consumption of a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from drumline.kube.codec import Undecodable, decoded
from drumline.kube.device_views import (
    ChannelRequest,
    Counters,
    DeviceName,
    DeviceSliceView,
    DeviceTaintRuleView,
    DeviceView,
    ResourceClaimView,
)
from drumline.kube.quantity import thousandths
from drumline.kube.readable_parts import readable_parts
from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata, ObjectPart

EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that stands for an extended resource."""


CHANNEL_DRIVER: Final = "compute-domain.nvidia.com"
CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"
_CHANNEL_CONFIG: Final = "ComputeDomainChannelConfig"


# A device attribute is a union. Drumline reads two of its types, and the others stay unparsed.
class _DeviceAttribute(ObjectPart, frozen=True):
    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")


class _Counter(ObjectPart, frozen=True):
    value: str | int | float


class _CounterSet(ObjectPart, frozen=True):
    name: str
    counters: dict[str, _Counter] | None = None


class _CounterConsumption(ObjectPart, frozen=True):
    counter_set: str
    counters: dict[str, _Counter] | None = None


class _Device(builtin.Device, frozen=True):
    consumes_counters: list[_CounterConsumption] | None = None
    attributes: dict[str, _DeviceAttribute] | None = None
    taints: list[builtin.Taint] | None = None
    allow_multiple_allocations: bool | None = None
    binding_conditions: list[str] | None = None


class _Pool(ObjectPart, frozen=True):
    name: str
    generation: int = 0
    # A driver publishes a pool in several slices. The scheduler uses a pool only when all are
    # there.
    resource_slice_count: int = 1


class _WireSliceSpec(builtin.ResourceSliceSpec, frozen=True, kw_only=True):
    pool: _Pool
    devices: tuple[_Device, ...] | None = None
    shared_counters: list[_CounterSet] | None = None


class _WireSlice(builtin.ResourceSlice, frozen=True):
    metadata: Metadata
    spec: _WireSliceSpec


class _Result(ObjectPart, frozen=True):
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None


class _Results(ObjectPart, frozen=True):
    results: list[_Result] | None = None


class _Allocation(ObjectPart, frozen=True):
    devices: _Results | None = None


class _WireClaimStatus(ObjectPart, frozen=True):
    allocation: _Allocation | None = None


class _Exactly(ObjectPart, frozen=True):
    device_class_name: str
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    # Selectors are CEL. They stay raw because only their presence matters.
    selectors: msgspec.Raw = msgspec.Raw(b"null")


class _Request(ObjectPart, frozen=True):
    name: str
    exactly: _Exactly | None = None


class _Opaque(ObjectPart, frozen=True):
    driver: str
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class _Config(ObjectPart, frozen=True):
    opaque: _Opaque | None = None


class _Requests(ObjectPart, frozen=True):
    requests: list[_Request] | None = None
    config: list[_Config] | None = None


class _WireClaimSpec(ObjectPart, frozen=True):
    devices: _Requests | None = None


# The driver's own config is opaque to the API server, so every field of it is unchecked.
class _ChannelConfig(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    domain: str = msgspec.field(default="", name="domainID")


class _WireClaim(ObjectPart, frozen=True):
    metadata: Metadata
    spec: _WireClaimSpec = _WireClaimSpec()
    status: _WireClaimStatus = _WireClaimStatus()


class _TaintSelector(ObjectPart, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class _WireTaintRuleSpec(ObjectPart, frozen=True):
    taint: builtin.Taint
    device_selector: _TaintSelector | None = None


class _WireTaintRule(ObjectPart, frozen=True):
    metadata: Metadata
    spec: _WireTaintRuleSpec


_slice_decoder: Final = msgspec.json.Decoder(_WireSlice)
_claim_decoder: Final = msgspec.json.Decoder(_WireClaim)
_channel_decoder: Final = msgspec.json.Decoder(_ChannelConfig)
_taint_rule_decoder: Final = msgspec.json.Decoder(_WireTaintRule)


def device_slice(raw: bytes | msgspec.Raw) -> DeviceSliceView:
    """Decode a ResourceSlice.

    Raises:
        Undecodable: It is not one.
    """
    document = decoded(_slice_decoder, raw)
    metadata, spec = document.metadata, document.spec
    try:
        devices = tuple(map(_device_view, spec.devices or ()))
        counters = _counters((each.name, each.counters) for each in spec.shared_counters or ())
    except ValueError as error:  # the amount of a counter
        raise Undecodable(str(error)) from error
    return DeviceSliceView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        driver=spec.driver,
        pool=spec.pool.name,
        generation=spec.pool.generation,
        slices=spec.pool.resource_slice_count,
        node_name=spec.node_name or "",
        devices=devices,
        counters=counters,
    )


def resource_claim(raw: bytes | msgspec.Raw) -> ResourceClaimView:
    """Decode a ResourceClaim, without devices for administrators, which claims may share.

    Raises:
        Undecodable: It is not one.
    """
    return _resource_claim_view(decoded(_claim_decoder, raw))


def resource_claim_in_part(raw: bytes | msgspec.Raw) -> ResourceClaimView:
    """Decode what can be read of a ResourceClaim: the devices that it holds count.

    Raises:
        Undecodable: It has no name.
    """
    try:
        return _resource_claim_view(readable_parts(_WireClaim, raw))
    except ValueError as error:  # msgspec's errors among them
        raise Undecodable(str(error)) from error


def _resource_claim_view(document: _WireClaim) -> ResourceClaimView:
    metadata, allocation = document.metadata, document.status.allocation
    results = (allocation.devices.results if allocation and allocation.devices else None) or ()
    # A pod controls the claims that its template makes. A shared claim has no controller.
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
            # Admin access does not reserve a device, so the device is still free for others.
            if not result.admin_access
        ),
        is_extended=(metadata.annotations or {}).get(EXTENDED_CLAIM) == "true",
        channel=_channel(document.spec.devices),
    )


def _channel(devices: _Requests | None) -> ChannelRequest | None:
    """Return the channel that a claim requests. None if it requests anything else, or more."""
    requests = (devices.requests if devices else None) or ()
    configs = (devices.config if devices else None) or ()
    # One request with one config is the form of the template that NVIDIA's driver makes.
    if len(requests) != 1 or len(configs) != 1:
        return None
    (request,), (config,) = requests, configs
    exactly, opaque = request.exactly, config.opaque
    if exactly is None or opaque is None or opaque.driver != CHANNEL_DRIVER:
        return None
    # The comparison covers count, mode and selectors: any other value asks for something else.
    if exactly != _Exactly(device_class_name=CHANNEL_CLASS):
        return None
    try:
        read = _channel_decoder.decode(opaque.parameters)
    except msgspec.MsgspecError:
        return None
    # A claim that names no domain could be for any domain, so it is not counted.
    if read.kind != _CHANNEL_CONFIG or not read.domain:
        return None
    return ChannelRequest(
        request=request.name, domain=read.domain, parameters=bytes(opaque.parameters)
    )


def device_taint_rule(raw: bytes | msgspec.Raw) -> DeviceTaintRuleView:
    """Decode a DeviceTaintRule.

    Raises:
        Undecodable: It is not one.
    """
    document = decoded(_taint_rule_decoder, raw)
    metadata, selector = document.metadata, document.spec.device_selector
    # An empty selector matches all devices. An absent one matches none.
    chosen = selector or _TaintSelector()
    return DeviceTaintRuleView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        taint=document.spec.taint,
        driver=chosen.driver,
        pool=chosen.pool,
        device=chosen.device,
        selects=selector is not None,
    )


def _device_view(device: _Device) -> DeviceView:
    attributes = device.attributes or {}
    kind, number = attributes.get("type"), attributes.get("id")
    return DeviceView(
        name=device.name,
        kind=(kind.string if kind is not None else None) or "",
        number=-1 if number is None or number.int_ is None else number.int_,
        is_shared=bool(device.allow_multiple_allocations),
        taints=tuple(device.taints or ()),
        consumes=_counters(
            (each.counter_set, each.counters) for each in device.consumes_counters or ()
        ),
        is_attached_later=bool(device.binding_conditions),
    )


def _counters(sets: Iterable[tuple[str, dict[str, _Counter] | None]]) -> Counters:
    return tuple(
        (name, counter, thousandths(str(each.value)))
        for name, counters in sets
        for counter, each in (counters or {}).items()
    )
