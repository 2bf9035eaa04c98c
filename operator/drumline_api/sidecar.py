"""Define a container of a template that runs beside the command while the pod lives."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from drumline_api.base import CONTAINER_NAME, ApiModel, Name, Quantity, Rule, keyed_by
from drumline_api.resource_names import LEAST_MEMORY
from drumline_api.variables import EnvFromSource, EnvVar
from drumline_api.volumes import VolumeMount


class SidecarResources(ApiModel):
    """Resources of a sidecar, in addition to those of the command. A sidecar never has a GPU."""

    cpu: Quantity | None = None
    """CPU request and limit. Default: a request of 100m without a limit."""
    memory: Quantity | None = None
    """Memory request and limit. Default: a request of 128Mi without a limit."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.cpu) || quantity(string(self.cpu)).isGreaterThan(quantity('0'))",
            message="cpu must be greater than 0; remove it or raise it",
            field_path=".cpu",
        ),
        Rule(
            rule="!has(self.memory)"
            f" || !quantity(string(self.memory)).isLessThan(quantity('{LEAST_MEMORY}'))",
            message=f"memory must be at least {LEAST_MEMORY}; add its unit, such as 128Mi",
            field_path=".memory",
        ),
    )


class Sidecar(ApiModel):
    """A container that runs beside the command, with the same restrictions.

    It starts before the init containers, is restarted whenever it ends, and is stopped after the
    command ends. Its exit does not affect the job's result.
    """

    name: Name
    """Name in the pod, for `kubectl logs -c`."""
    image: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """Image of the container. Default: the template's image."""
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]] | None, Field(min_length=1, max_length=256)
    ] = None
    """Command that replaces the image's entry point. Required if the image is the template's."""
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    """Arguments of the command."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=64, json_schema_extra=keyed_by("name"))
    ] = None
    """Environment variables. The template's variables are not inherited. HOME is the same as for
    the command."""
    env_from: Annotated[list[EnvFromSource] | None, Field(max_length=8)] = None
    """Secrets and ConfigMaps whose keys become environment variables with a prefix, as in the
    template."""
    resources: SidecarResources | None = None
    """CPU and memory of the sidecar, added to the job's resources in each pod."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Mounts of the template's volumes."""

    rules: ClassVar[tuple[Rule, ...]] = (
        CONTAINER_NAME,
        Rule(
            rule="has(self.image) || has(self.command)",
            message="command is required if the image is the template's, because the template's"
            " entry point trains; add command, or image",
        ),
    )
