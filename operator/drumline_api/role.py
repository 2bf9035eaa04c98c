"""Define pods of a gang that differ from its ranks: a launcher, a parameter server, an evaluator.

A role has the pod settings of the job's template (volumes, user, pull secrets, labels) and its own
container. Its pods are placed, started and stopped with the gang. They have no agent.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from drumline_api.base import ApiModel, Rule, keyed_by
from drumline_api.podtemplate import ResourceList
from drumline_api.variables import EnvFromSource, EnvVar
from drumline_api.volumes import VolumeMount

MAX_ROLES: Final = 8
MAX_ROLE_PODS: Final = 256
"""Maximum number of pods of one role."""
_Words = Annotated[list[Annotated[str, Field(max_length=8192)]], Field(max_length=256)]


class RoleSpec(ApiModel):
    """Identical pods beside the ranks of a template. The kubelet starts their command."""

    name: Annotated[
        str, Field(min_length=1, max_length=20, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    ]
    """Name of the role. The first pod's host name is NAME-0 in every pod that has the gang's host
    names. The pods have the label drumline.dev/role."""
    nodes: Annotated[int, Field(ge=1, le=MAX_ROLE_PODS)] = 1
    """Number of pods. Default: 1."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of GPUs per pod. Default: 0."""
    image: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """Image of the container. Default: the template's image."""
    command: _Words | None = None
    """Command that replaces the image's entry point. Default: the image's entry point, not the
    template's command."""
    args: _Words | None = None
    """Arguments of the command."""
    working_dir: Annotated[str, Field(max_length=512)] | None = None
    """Folder in which the command starts. Default: the image's folder, or the folder of
    template.code."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=128, json_schema_extra=keyed_by("name"))
    ] = None
    """Environment variables. The template's variables are not inherited. DRUMLINE_ROLE and
    DRUMLINE_ROLE_INDEX identify the pod."""
    env_from: Annotated[list[EnvFromSource] | None, Field(max_length=16)] = None
    """Secrets and ConfigMaps whose keys become environment variables."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Mounts of the template's volumes."""
    resources: ResourceList | None = None
    """Resource requests and limits of each pod besides GPUs. CPU and memory default to requests of
    100m and 128Mi, times the number of GPUs if the pod has any, without a limit."""
    completes_job: bool = False
    """If true, the job succeeds when all pods of this role, and of other roles with this setting,
    have succeeded. All other pods are then stopped. Use it for an MPI launcher, for example.
    Default: false: the ranks determine the result."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!(self.name in ['main', 'rank', 'trainer', 'localhost'])"
            " && !self.name.startsWith('drumline')",
            message="name: main, rank, trainer, localhost and names that start with drumline are"
            " reserved; choose another name",
            field_path=".name",
        ),
    )
