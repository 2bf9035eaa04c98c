"""The init containers that a template asks for."""

from __future__ import annotations

from typing import Any, Final

from drumline.api.initcontainer import InitContainer
from drumline.lifecycle.manifests.agents import container_security

Json = dict[str, Any]

_SHARED: Final = ("cpu", "memory", "ephemeral-storage")
"""What an init container has of the resources of the main one: no devices, no huge pages."""


def init_container(wanted: InitContainer, *, main: Json) -> Json:
    """One of them.

    It has the main container's CPU and memory, so what the pod requests is the same with and
    without it, and so is the pod's QoS class: both count the larger of the two.

    Args:
        wanted: what the template says.
        main: the main container as the kubelet would start it.
    """
    home = [variable for variable in main["env"] if variable["name"] == "HOME"]
    own = [each.model_dump(by_alias=True, exclude_none=True) for each in wanted.env or []]
    named = {variable["name"] for variable in own}
    mounts = [
        each.model_dump(by_alias=True, exclude_none=True) for each in wanted.volume_mounts or []
    ]
    container: Json = {
        "name": wanted.name,
        "image": wanted.image or main["image"],
        "command": list(wanted.command),
        "env": [*(variable for variable in home if variable["name"] not in named), *own],
        "resources": {
            kind: {name: amount for name, amount in amounts.items() if name in _SHARED}
            for kind, amounts in main["resources"].items()
        },
        "securityContext": container_security(read_only_root=False),
        "volumeMounts": [*_home_mounts(main, mounts), *mounts],
        # What it writes where it fails is how the pod has ended, in status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if wanted.args is not None:
        container["args"] = list(wanted.args)
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
