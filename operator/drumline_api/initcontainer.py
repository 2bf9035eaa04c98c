"""A container of a template that runs to its end before the command starts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline_api.base import CONTAINER_NAME, ApiModel, Name, Rule, keyed_by
from drumline_api.variables import EnvVar
from drumline_api.volumes import VolumeMount


class InitContainer(ApiModel):
    """A container that runs to its end before the command starts, as restricted as that.

    It has the CPU and memory that the job states, and no GPU. Where it fails the pod has failed.
    """

    name: Name
    """Its name in the pod, for `kubectl logs -c`."""
    image: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """The container's image. Default: the template's."""
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]], Field(min_length=1, max_length=256)
    ]
    """What it runs."""
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    """Arguments of the command."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=64, json_schema_extra=keyed_by("name"))
    ] = None
    """Its variables; those of the template are not its own. HOME is the command's."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Where volumes of the template appear in it."""

    rules: ClassVar[tuple[Rule, ...]] = (CONTAINER_NAME,)
