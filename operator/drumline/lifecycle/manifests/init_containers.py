"""The init containers and the sidecars that a template asks for.

A sidecar is an init container with restartPolicy Always (KEP-753): it starts before those that run
to their end, the kubelet starts it again whenever it ends, and stops it after the main container.
What it requests comes on top of all others.
"""

from __future__ import annotations

from typing import Any, Final

from drumline.lifecycle.manifests.agents import RESTRICTED
from drumline.lifecycle.manifests.environment import NO_GPUS
from drumline.lifecycle.manifests.volumes import HOME_VOLUME
from drumline_api.initcontainer import InitContainer
from drumline_api.podtemplate import PodTemplate
from drumline_api.sidecar import Sidecar, SidecarResources

Json = dict[str, Any]

_SHARED: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources that an init container takes over: no devices, no huge pages."""
_LEAST: Final = {"cpu": "100m", "memory": "128Mi"}
"""Default requests of a sidecar. Without them, a pod would start on a node with nothing left."""


def with_init_containers(spec: Json, template: PodTemplate) -> Json:
    """Add the template's sidecars and init containers to the containers of a pod."""
    if not (template.init_containers or template.sidecars):
        return spec
    (main,) = spec["containers"]
    added = [
        # First, so that they also serve what runs before the command, as a proxy does.
        *(_sidecar(each, main=main) for each in template.sidecars or ()),
        *(_init_container(each, main=main) for each in template.init_containers or ()),
    ]
    return {**spec, "initContainers": added}


def _init_container(wanted: InitContainer, *, main: Json) -> Json:
    """Return an init container with the CPU and memory of the main one.

    So the pod requests the same with and without it, and keeps its QoS class: both count the
    larger of the two.
    """
    container = _container(wanted, main=main)
    container["resources"] = {
        kind: {name: amount for name, amount in amounts.items() if name in _SHARED}
        for kind, amounts in main["resources"].items()
    }
    # What it writes where it fails is how the pod has ended, in status.
    return {**container, "terminationMessagePolicy": "FallbackToLogsOnError"}


def _sidecar(wanted: Sidecar, *, main: Json) -> Json:
    container = _container(wanted, main=main)
    container["env"] += [{"name": name, "value": value} for name, value in NO_GPUS.items()]
    if wanted.env_from:
        container["envFrom"] = [source.as_json() for source in wanted.env_from]
    stated = _stated(wanted.resources)
    resources = {"requests": sidecar_requests(wanted), **({"limits": stated} if stated else {})}
    return {**container, "restartPolicy": "Always", "resources": resources}


def sidecar_requests(wanted: Sidecar) -> dict[str, str]:
    """Return what a sidecar requests, on top of all other containers of its pod."""
    return _LEAST | _stated(wanted.resources)


def _stated(resources: SidecarResources | None) -> dict[str, str]:
    return resources.as_json() if resources is not None else {}


def _container(wanted: InitContainer | Sidecar, *, main: Json) -> Json:
    """Return the common part: the main container's image and home unless they have their own."""
    home = [variable for variable in main["env"] if variable["name"] == "HOME"]
    own = [each.as_json() for each in wanted.env or []]
    named = {variable["name"] for variable in own}
    mounts = [each.as_json() for each in wanted.volume_mounts or []]
    container: Json = {
        "name": wanted.name,
        "image": wanted.image or main["image"],
        "env": [*(variable for variable in home if variable["name"] not in named), *own],
        "securityContext": RESTRICTED,
        "volumeMounts": [*_home_mounts(main, mounts), *mounts],
    }
    for key, words in (("command", wanted.command), ("args", wanted.args)):
        if words is not None:
            container[key] = list(words)
    if wanted.image is None and "imagePullPolicy" in main:
        container["imagePullPolicy"] = main["imagePullPolicy"]
    return container


def _home_mounts(main: Json, own: list[Json]) -> list[Json]:
    """Return the mount of the home that the operator gives the main container: its cache stays."""
    taken = {mount["mountPath"] for mount in own}
    return [
        mount
        for mount in main["volumeMounts"]
        if mount["name"] == HOME_VOLUME and mount["mountPath"] not in taken
    ]
