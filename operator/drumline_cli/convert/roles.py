"""Pods unlike those that train: the roles of a TrainingJob."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import ConversionError, Json
from drumline_cli.convert.pods import resources_of, training_container
from drumline_cli.convert.volumes import env_from, env_of, mounts_of, volumes_of

_TAKEN: Final = frozenset(("main", "rank", "trainer", "localhost"))
_LONGEST: Final = 20


def role_name(name: str, *, taken: Collection[str]) -> str:
    """Return a name that a role can have, as close to this one as may be."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not slug[:1].isalpha() or slug in _TAKEN or slug.startswith("drumline"):
        slug = f"role-{slug}".strip("-")
    base = slug[:_LONGEST].rstrip("-")
    number = 2
    slug = base
    while slug in taken:
        ending = f"-{number}"
        slug = f"{base[: _LONGEST - len(ending)]}{ending}"
        number += 1
    return slug


def role_of(
    pod_template: Fields, *, to: str, template: Json, container_name: str | None
) -> tuple[Json, int]:
    """Return the container of a role, and its GPUs. Its volumes go into the template.

    What else its pods have is the template's: it is noted where it differs, as left out.

    Args:
        pod_template: metadata and spec.
        to: where the role is, for the notes.
        template: template of the job; it gets the volumes.
        container_name: name of the container that counts; None, or not there: the first.

    Raises:
        ConversionError: there is no container.
    """
    pod = pod_template.below("spec")
    container = training_container(pod, name=container_name)
    container.text("name")
    role: Json = {}
    image = container.text("image", to=f"{to}.image")
    if image is None:
        raise ConversionError(path=container.at("image"), problem="is required")
    if image != template["image"]:
        role["image"] = image
    gpus, resources = resources_of(container.below("resources"), to=to)
    for name in ("command", "args"):
        words = container.texts(name, to=f"{to}.{name}")
        if words:
            role[name] = words
    folder = container.text("workingDir", to=f"{to}.workingDir")
    if folder is not None:
        role["workingDir"] = folder
    usable = _shared(pod, template)
    for name, value in (
        ("env", env_of(container, to=to)),
        ("envFrom", env_from(container, to=to)),
        ("volumeMounts", mounts_of(container, volumes=usable, to=to)),
        ("resources", resources),
    ):
        if value:
            role[name] = value
    pod_template.leave_out_rest("the pods of a role inherit this from the template")
    return role, gpus


def _shared(pod: Fields, template: Json) -> list[Json]:
    """Add a pod's volumes to the template. Omit those whose name another volume has."""
    known = {volume["name"]: volume for volume in template.get("volumes", ())}
    usable: list[Json] = []
    for volume in volumes_of(pod):
        other = known.setdefault(volume["name"], volume)
        if other == volume:
            usable.append(volume)
        else:
            pod.notes.left_out(
                pod.at("volumes"), f"the template has another volume {volume['name']}; rename it"
            )
    if known:
        template["volumes"] = list(known.values())
    return usable
