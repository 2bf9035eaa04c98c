"""Pods of a gang that are unlike its ranks: a launcher, a parameter server, an evaluator.

A role has the pod settings of the job's template (volumes, user, pull secrets, labels) and a
container of its own. Its pods start, are placed and end with the gang; no agent runs in them.
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
"""Of one role."""
_Words = Annotated[list[Annotated[str, Field(max_length=8192)]], Field(max_length=256)]


class RoleSpec(ApiModel):
    """Equal pods beside the ranks of a template, with a command that the kubelet starts."""

    name: Annotated[
        str, Field(min_length=1, max_length=20, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    ]
    """What the pods are called: the host of the first one is NAME-0 in every pod of the gang that
    knows its peers, and its pod has the label drumline.dev/role."""
    nodes: Annotated[int, Field(ge=1, le=MAX_ROLE_PODS)] = 1
    """How many pods it has. Default: 1."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of each of its pods. Default: 0."""
    image: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """The container's image. Default: the template's."""
    command: _Words | None = None
    """Replaces the image's entry point. Default: the image's, not the template's."""
    args: _Words | None = None
    """Arguments of the command."""
    working_dir: Annotated[str, Field(max_length=512)] | None = None
    """Folder the command starts in. Default: the image's, with template.code its folder."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=128, json_schema_extra=keyed_by("name"))
    ] = None
    """Its variables; those of the template are not its own. DRUMLINE_ROLE and DRUMLINE_ROLE_INDEX
    say which pod it is."""
    env_from: Annotated[list[EnvFromSource] | None, Field(max_length=16)] = None
    """Secrets and ConfigMaps whose keys are variables."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Where volumes of the template appear in it."""
    resources: ResourceList | None = None
    """What each of its pods requests and is limited to besides GPUs. CPU or memory that is left
    out: 100m and 128Mi are requested, for each GPU where it has any, without a limit."""
    completes_job: bool = False
    """Whether the job has succeeded once all pods of this role (and of others that say so) have,
    as with the launcher of MPI; all other pods are then ended. Default: false: the ranks decide."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!(self.name in ['main', 'rank', 'trainer', 'localhost'])"
            " && !self.name.startsWith('drumline')",
            message="name: main, rank, trainer, localhost and names starting with drumline are"
            " taken; choose another name",
            field_path=".name",
        ),
    )
