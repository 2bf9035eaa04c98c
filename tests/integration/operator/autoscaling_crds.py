"""The schemas of ProvisioningRequest v1 and CapacityBuffer v1beta1, without their descriptions.

As cluster-autoscaler 1.36 installs them; bounds, patterns and rules are its own:
https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/apis/config/crd
"""

from __future__ import annotations

from typing import Any, Final

from tests.kube import Json

GROUP: Final = "autoscaling.x-k8s.io"
_DNS: Final = {
    "type": "string",
    "maxLength": 253,
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_IMMUTABLE: Final = {
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "Value is immutable"}]
}
_CONDITIONS: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        },
    },
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


def _object(required: tuple[str, ...] = (), **properties: Any) -> Json:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **needed, "properties": properties}


_REQUEST_SPEC: Final = _object(
    ("podSets", "provisioningClassName"),
    provisioningClassName={**_DNS, **_IMMUTABLE},
    parameters={
        "type": "object",
        "maxProperties": 100,
        "additionalProperties": {"type": "string", "maxLength": 255},
        **_IMMUTABLE,
    },
    podSets={
        "type": "array",
        "minItems": 1,
        "maxItems": 32,
        "items": _object(
            ("count", "podTemplateRef"),
            count={"type": "integer", "format": "int32", "minimum": 1},
            podTemplateRef=_object(("name",), name=_DNS),
        ),
        **_IMMUTABLE,
    },
)
_BUFFER_SPEC: Final = {
    **_object(
        provisioningStrategy={"type": "string", "default": "buffer.x-k8s.io/active-capacity"},
        podTemplateRef=_object(("name",), name={"type": "string", "minLength": 1}),
        replicas={"type": "integer", "format": "int32", "minimum": 0},
    ),
    "x-kubernetes-validations": [
        {
            "rule": "!has(self.podTemplateRef) || has(self.replicas)",
            "message": "If X is set, replicas or limits must also be set",
        }
    ],
}


def _crd(kind: str, version: str, spec: Json) -> Json:
    plural = f"{kind.lower()}s"
    schema = _object(("spec",), spec=spec, status=_object(conditions=_CONDITIONS))
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


CRDS: Final = (
    _crd("ProvisioningRequest", "v1", _REQUEST_SPEC),
    _crd("CapacityBuffer", "v1beta1", _BUFFER_SPEC),
)
