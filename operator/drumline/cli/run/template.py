"""Adds to the template of a job."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def with_volume(template: Json, volume: Json, *, mount: Json) -> Json:
    """The template with one more volume, and where it appears in the container."""
    return {
        **template,
        "volumes": [*template.get("volumes", []), volume],
        "volumeMounts": [*template.get("volumeMounts", []), mount],
    }


def with_init_container(template: Json, container: Json) -> Json:
    """The template with one more init container, after those that it has."""
    return {**template, "initContainers": [*template.get("initContainers", []), container]}
