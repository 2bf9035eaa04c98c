"""Define the operator's settings that affect its decisions.

No object of the cluster holds them. They come from the chart's values, or are inferred from the
objects of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from drumline.kube.kinds import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from drumline.kube.placement import QUEUE_GATE
from drumline.kube.workload_kinds import KINDS, OTHER_KINDS
from drumline_api.base import LABEL_QUEUE
from drumline_api.gpupool import GpuPool
from drumline_api.trainingjob import TrainingJob
from drumline_cli.errors import BadInput
from drumline_cli.manifests import Json, ManifestDocument, read_manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Settings of the operator. None: unknown."""

    guarded_pools: frozenset[str] | None = None
    """Pools in which foreign pods give back borrowed GPUs."""
    admits_workloads: bool | None = None
    """Whether the operator admits gated pods and suspended workloads."""
    workload_kinds: frozenset[str] = frozenset(OTHER_KINDS)
    """Kinds that wait besides Jobs and JobSets. All kinds if unknown."""
    dynamic_resources: bool | None = None
    """Whether the operator counts devices that only claims get."""

    def reads(self, manifest: ManifestDocument) -> bool:
        """Return whether the operator reads objects of this kind."""
        # Without device support the operator does not watch these objects.
        if manifest.kind in _OF_DEVICES:
            return bool(self.dynamic_resources)
        return manifest.kind not in OTHER_KINDS or manifest.kind in self.workload_kinds

    def judged(self, manifests: Collection[ManifestDocument]) -> Installation:
        """Return the installation with unknown settings derived from the objects."""
        waits, devices = self.admits_workloads, self.dynamic_resources
        # A gated pod without admission would wait forever, so its existence decides.
        return replace(
            self,
            admits_workloads=any(map(_waits, manifests)) if waits is None else waits,
            dynamic_resources=any(map(_has_devices, manifests)) if devices is None else devices,
        )


_OF_DEVICES: Final = (RESOURCE_SLICES.kind, RESOURCE_CLAIMS.kind, DEVICE_TAINT_RULES[0].kind)
NOT_KNOWN: Final = Installation()
CHART_KEYS: Final = ("guardedPools", "foreignPods", "dynamicResources")
"""Keys of the chart's values that are read here."""


def read_installation(name: str | None) -> Installation:
    """Return the settings in a file of chart values, or defaults for another file or None.

    Raises:
        BadInput: it cannot be read, or a value is of another type than in the chart.
    """
    raw: Mapping[str, Any] = {}
    # Without a file, every setting is unknown.
    for manifest in read_manifests([name]) if name is not None else ():
        raw = manifest.raw
    admits = _switch(raw, "foreignPods", "admission", "enabled")
    kinds = _names(raw, "foreignPods", "admission", "kinds")
    if kinds is None:
        kinds = frozenset(OTHER_KINDS if admits is None else ())  # the chart's default is none
    return Installation(
        guarded_pools=_names(raw, "guardedPools"),
        admits_workloads=admits,
        workload_kinds=kinds,
        dynamic_resources=_switch(raw, "dynamicResources", "enabled"),
    )


def _names(raw: Mapping[str, Any], *path: str) -> frozenset[str] | None:
    value = _value(raw, *path)
    if value is None:
        return None
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(each, str) for each in names):
        # A wrong type would change the decisions silently.
        raise BadInput(f"{'.'.join(path)}: must be a list of names")
    return frozenset(map(str, names))


def _switch(raw: Mapping[str, Any], *path: str) -> bool | None:
    value = _value(raw, *path)
    if value is None or isinstance(value, bool):
        return value
    raise BadInput(f"{'.'.join(path)}: must be true or false")


def _value(raw: Mapping[str, Any], *path: str) -> object:
    *parents, last = path
    for key in parents:
        raw = _mapping(raw.get(key))
    return raw.get(last)


def labels_of(manifest: ManifestDocument) -> Json:
    """Return the labels of an object. Empty: it has none, or they are not valid."""
    return _mapping(_mapping(manifest.raw.get("metadata")).get("labels"))


def _waits(manifest: ManifestDocument) -> bool:
    """Return whether a pod or workload waits for its admission by the operator."""
    if LABEL_QUEUE not in labels_of(manifest):
        return False
    spec = _mapping(manifest.raw.get("spec"))
    if manifest.kind == "Pod":
        gates = spec.get("schedulingGates")
        return isinstance(gates, list) and {"name": QUEUE_GATE} in gates
    kinds = [kind for kind in KINDS.values() if kind.resource.kind == manifest.kind]
    return any(_value(manifest.raw, *kind.suspend) is True for kind in kinds)


_DEVICE_FIELDS: Final = {GpuPool.KIND: "devices", TrainingJob.KIND: "computeDomain"}
"""Fields that only an operator with device support uses."""


def _has_devices(manifest: ManifestDocument) -> bool:
    return _DEVICE_FIELDS.get(manifest.kind) in _mapping(manifest.raw.get("spec"))


def _mapping(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}
