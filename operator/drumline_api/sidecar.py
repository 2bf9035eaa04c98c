"""A container of a template that runs beside the command for as long as the pod lives."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline_api.base import CONTAINER_NAME, ApiModel, Name, Quantity, Rule, keyed_by
from drumline_api.variables import EnvFromSource, EnvVar
from drumline_api.volumes import VolumeMount

_MORE_THAN_NOTHING = "quantity(string(self.{0})).isGreaterThan(quantity('0'))"


class SidecarResources(ApiModel):
    """What a sidecar needs beside the CPU and memory of the command; it never has a GPU."""

    cpu: Quantity | None = None
    """CPUs, requested and at most. Default: 100m are requested, without a limit."""
    memory: Quantity | None = None
    """Memory, requested and at most. Default: 128Mi are requested, without a limit."""

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            rule=f"!has(self.{name}) || {_MORE_THAN_NOTHING.format(name)}",
            message=f"{name} must be greater than 0; remove it or raise it",
            field_path=f".{name}",
        )
        for name in ("cpu", "memory")
    )


class Sidecar(ApiModel):
    """A container that runs beside the command, as restricted as that.

    It starts before the init containers, is started again whenever it ends, and is stopped once the
    command has ended. How it ends says nothing about the job.
    """

    name: Name
    """Its name in the pod, for `kubectl logs -c`."""
    image: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """The container's image. Default: the template's."""
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]] | None, Field(min_length=1, max_length=256)
    ] = None
    """Replaces the image's entry point; required where the image is the template's."""
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    """Arguments of the command."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=64, json_schema_extra=keyed_by("name"))
    ] = None
    """Its variables; those of the template are not its own. HOME is the command's."""
    env_from: Annotated[list[EnvFromSource] | None, Field(max_length=8)] = None
    """Secrets and ConfigMaps whose keys are variables, each with a prefix, as in the template."""
    resources: SidecarResources | None = None
    """CPU and memory of its own, which come on top of the job's in each pod."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Where volumes of the template appear in it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        CONTAINER_NAME,
        Rule(
            rule="has(self.image) || has(self.command)",
            message="command is required where the image is the template's, whose own entry point"
            " trains; add command, or image",
        ),
    )
