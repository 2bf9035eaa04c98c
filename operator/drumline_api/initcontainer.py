"""Define a container of a template that runs to completion before the command starts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline_api.base import CONTAINER_NAME, ApiModel, Name, Rule, keyed_by
from drumline_api.variables import EnvVar
from drumline_api.volumes import VolumeMount


class InitContainer(ApiModel):
    """A container that runs to completion before the command starts.

    It has the same restrictions as the command, the job's CPU and memory, and no GPU. If it fails,
    the pod fails.
    """

    name: Name
    """Name in the pod, for `kubectl logs -c`."""
    image: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """Image of the container. Default: the template's image."""
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]], Field(min_length=1, max_length=256)
    ]
    """Command of the container."""
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    """Arguments of the command."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=64, json_schema_extra=keyed_by("name"))
    ] = None
    """Environment variables. The template's variables are not inherited. HOME is the same as for
    the command."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Mounts of the template's volumes."""

    rules: ClassVar[tuple[Rule, ...]] = (CONTAINER_NAME,)
