"""NVIDIA's side of a ComputeDomain, played: its CRD, its slices, and the template that it makes.

The CRD is transcribed from the driver's chart (0.4), without what is only documentation; the
template is what its controller writes for a domain.
"""

from __future__ import annotations

from typing import Final

from tests.kube import Json, Kube
from tests.operator_process import is_established

DRIVER: Final = "compute-domain.nvidia.com"
CLASS: Final = "compute-domain-default-channel.nvidia.com"
_NAME: Final = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_CHANNEL: Final[Json] = {
    "type": "object",
    "required": ["resourceClaimTemplate"],
    "properties": {
        "allocationMode": {"type": "string", "enum": ["All", "Single"], "default": "Single"},
        "resourceClaimTemplate": _NAME,
    },
}
_SPEC: Final[Json] = {
    "type": "object",
    "required": ["channel"],
    "properties": {"channel": _CHANNEL, "numNodes": {"type": "integer", "minimum": 0}},
    "x-kubernetes-validations": [
        {"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}
    ],
}
CRD: Final[Json] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "computedomains.resource.nvidia.com"},
    "spec": {
        "group": "resource.nvidia.com",
        "names": {
            "kind": "ComputeDomain",
            "listKind": "ComputeDomainList",
            "plural": "computedomains",
            "singular": "computedomain",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC}},
                },
            }
        ],
    },
}


def install(api: Kube) -> None:
    """What the driver's chart installs, as far as it is objects."""
    api.ensure(CRD)
    api.wait("customresourcedefinitions", CRD["metadata"]["name"], None, is_established)
    attributes = f"device.attributes['{DRIVER}']"
    expressions = (f"device.driver == '{DRIVER}'", f"{attributes}.id == 0")
    api.ensure(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": CLASS},
            "spec": {"selectors": [{"cel": {"expression": each}} for each in expressions]},
        }
    )


def channels_of(node: str) -> Json:
    """The slice that the driver publishes of a node: a channel for pods, a device for daemons."""
    devices = [
        {"name": f"{kind}-0", "attributes": {"type": {"string": kind}, "id": {"int": 0}}}
        for kind in ("channel", "daemon")
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-channels"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def template_of(domain: Json, *, of_domain: str | None = None) -> Json:
    """What the driver's controller makes for a domain.

    Args:
        domain: the ComputeDomain.
        of_domain: the uid that it names; None: that of the domain.
    """
    metadata = domain["metadata"]
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": of_domain or metadata["uid"],
        "allocationMode": "Single",
    }
    devices = {
        "requests": [{"name": "channel", "exactly": {"deviceClassName": CLASS}}],
        "config": [
            {"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}
        ],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": domain["spec"]["channel"]["resourceClaimTemplate"]["name"],
            "namespace": metadata["namespace"],
        },
        "spec": {"spec": {"devices": devices}},
    }
