"""The claims, ConfigMaps and Secrets without which a pod does not start, by its manifest.

A kubelet starts no container whose volume, variable or file comes from an object that does not
exist, unless the reference is optional. It mounts only volumes that a container uses. The token
Secrets of jobs are left out: the operator makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from drumline_api.base import TOKEN_SECRET_SUFFIX

Json = dict[str, Any]


class NamedObject(NamedTuple):
    """A ConfigMap or Secret in the job's namespace."""

    kind: str
    """`ConfigMap` or `Secret`."""
    name: str


class _Field(NamedTuple):
    """A field with a reference to an object."""

    kind: str
    key: str
    name: str = "name"


_VOLUME: Final = (_Field("Secret", "secret", "secretName"), _Field("ConfigMap", "configMap"))
_PROJECTED: Final = (_Field("Secret", "secret"), _Field("ConfigMap", "configMap"))
_CSI: Final = (_Field("Secret", "nodePublishSecretRef"),)
"""The kubelet passes this Secret to the driver when it mounts the volume."""
_VARIABLE: Final = (_Field("Secret", "secretKeyRef"), _Field("ConfigMap", "configMapKeyRef"))
_VARIABLES: Final = (_Field("Secret", "secretRef"), _Field("ConfigMap", "configMapRef"))


def pull_secrets(pods: Iterable[Json]) -> tuple[str, ...]:
    """Return the image pull secrets of pods, each once."""
    named = (each for pod in pods for each in pod["spec"].get("imagePullSecrets", []))
    return tuple(dict.fromkeys(each["name"] for each in named if each.get("name")))


def claims_of(pods: Iterable[Json]) -> tuple[str, ...]:
    """Return the PersistentVolumeClaims that pods mount by name, each once."""
    volumes = (volume for pod in pods for volume in pod["spec"].get("volumes", []))
    named = (volume.get("persistentVolumeClaim") for volume in volumes)
    return tuple(dict.fromkeys(each["claimName"] for each in named if each))


def named_objects(pods: Iterable[Json]) -> tuple[NamedObject, ...]:
    """Return the objects that pods must have, without pull secrets, each once and sorted."""
    objects = set(chain.from_iterable(_of_pod(pod["spec"]) for pod in pods))
    return tuple(
        sorted(
            each for each in objects if each.name and not each.name.endswith(TOKEN_SECRET_SUFFIX)
        )
    )


def _of_pod(spec: Json) -> Iterator[NamedObject]:
    containers: list[Json] = [*spec.get("initContainers", []), *spec["containers"]]
    mounted = {mount["name"] for each in containers for mount in each.get("volumeMounts", [])}
    for volume in spec.get("volumes", []):
        if volume["name"] in mounted:
            yield from _of_volume(volume)
    for container in containers:
        for variable in container.get("env", []):
            yield from _named(variable.get("valueFrom", {}), _VARIABLE)
        for source in container.get("envFrom", []):
            yield from _named(source, _VARIABLES)


def _of_volume(volume: Json) -> Iterator[NamedObject]:
    yield from _named(volume, _VOLUME)
    sources: list[Json] = volume.get("projected", {}).get("sources", [])
    for source in sources:
        yield from _named(source, _PROJECTED)
    yield from _named(volume.get("csi", {}), _CSI)


def _named(source: Json, fields: Iterable[_Field]) -> Iterator[NamedObject]:
    """Return the objects that a source of a volume or a variable requires."""
    for field in fields:
        reference: Json = source.get(field.key) or {}
        if reference.get(field.name) and not reference.get("optional"):
            yield NamedObject(field.kind, reference[field.name])
