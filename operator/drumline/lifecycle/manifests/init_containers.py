"""The init containers and the sidecars that a template asks for.

A sidecar is an init container with restartPolicy Always (KEP-753): it starts before those that run
to their end, the kubelet starts it again whenever it ends, and stops it after the main container.
What it requests comes on top of all others.
"""

from __future__ import annotations

from typing import Any, Final

from drumline.api.base import ApiModel
from drumline.api.initcontainer import InitContainer
from drumline.api.sidecar import Sidecar, SidecarResources
from drumline.lifecycle.manifests.agents import container_security
from drumline.lifecycle.manifests.environment import NO_GPUS

Json = dict[str, Any]

_SHARED: Final = ("cpu", "memory", "ephemeral-storage")
"""What an init container has of the resources of the main one: no devices, no huge pages."""
_LEAST: Final = {"cpu": "100m", "memory": "128Mi"}
"""Requested for a sidecar where the template does not say: with neither, a pod would start where
nothing is left for it."""


def init_container(wanted: InitContainer, *, main: Json) -> Json:
    """One of them.

    It has the main container's CPU and memory, so what the pod requests is the same with and
    without it, and so is the pod's QoS class: both count the larger of the two.

    Args:
        wanted: what the template says.
        main: the main container as the kubelet would start it.
    """
    container = _container(wanted, main=main)
    container["resources"] = {
        kind: {name: amount for name, amount in amounts.items() if name in _SHARED}
        for kind, amounts in main["resources"].items()
    }
    # What it writes where it fails is how the pod has ended, in status.
    return {**container, "terminationMessagePolicy": "FallbackToLogsOnError"}


def sidecar_container(wanted: Sidecar, *, main: Json) -> Json:
    """One of the sidecars.

    Args:
        wanted: what the template says.
        main: the main container as the kubelet would start it.
    """
    container = _container(wanted, main=main)
    container["env"] += [{"name": name, "value": value} for name, value in NO_GPUS.items()]
    if wanted.env_from:
        container["envFrom"] = [_written(source) for source in wanted.env_from]
    stated = _stated(wanted.resources)
    resources = {"requests": sidecar_requests(wanted), **({"limits": stated} if stated else {})}
    return {**container, "restartPolicy": "Always", "resources": resources}


def sidecar_requests(wanted: Sidecar) -> dict[str, str]:
    """What a sidecar requests, on top of all other containers of its pod."""
    return _LEAST | _stated(wanted.resources)


def _stated(resources: SidecarResources | None) -> dict[str, str]:
    return _written(resources) if resources is not None else {}


def _container(wanted: InitContainer | Sidecar, *, main: Json) -> Json:
    """What both have: the main container's image and home unless they say otherwise."""
    home = [variable for variable in main["env"] if variable["name"] == "HOME"]
    own = [_written(each) for each in wanted.env or []]
    named = {variable["name"] for variable in own}
    mounts = [_written(each) for each in wanted.volume_mounts or []]
    container: Json = {
        "name": wanted.name,
        "image": wanted.image or main["image"],
        "env": [*(variable for variable in home if variable["name"] not in named), *own],
        "securityContext": container_security(read_only_root=False),
        "volumeMounts": [*_home_mounts(main, mounts), *mounts],
    }
    for key, words in (("command", wanted.command), ("args", wanted.args)):
        if words is not None:
            container[key] = list(words)
    if wanted.image is None and "imagePullPolicy" in main:
        container["imagePullPolicy"] = main["imagePullPolicy"]
    return container


def _home_mounts(main: Json, own: list[Json]) -> list[Json]:
    """The home that the operator gave the main container: what is cached there stays."""
    taken = {mount["mountPath"] for mount in own}
    return [
        mount
        for mount in main["volumeMounts"]
        if mount["name"] == "drumline-home" and mount["mountPath"] not in taken
    ]


def _written(model: ApiModel) -> Json:
    """As core/v1 spells it, which the models of a template take over."""
    return model.model_dump(by_alias=True, exclude_none=True)
