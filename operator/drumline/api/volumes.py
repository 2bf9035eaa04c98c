"""Volumes of a pod template, and where they may be mounted.

A volume is a claim, a Secret or a ConfigMap of the job's namespace, or scratch space. Mounts of the
operator and the kubelet cannot be hidden: the gang's hosts, tokens, the kernel's folders.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline.api.base import (
    TOKEN_SECRET_SUFFIX,
    ApiModel,
    Name,
    Quantity,
    Rule,
    relative_path,
)

RESERVED_MOUNTS: Final = (
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/opt/drumline",
    "/proc",
    "/sys",
    "/run/drumline",
    "/run/secrets",
    "/var/run/drumline",
    "/var/run/secrets",
)
"""Where the operator or the kubelet mounts: the gang's hosts, the agent's own Python, tokens, the
kernel's own folders."""


class ClaimVolume(ApiModel):
    """A PersistentVolumeClaim of the job's namespace."""

    claim_name: Name
    """Name of the claim."""
    read_only: bool = False
    """Whether the pods only read it. Default: false."""


class NamedVolume(ApiModel):
    """A Secret or ConfigMap of the job's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret or ConfigMap; its keys become files."""


class EmptyDir(ApiModel):
    """Scratch space of the pod."""

    medium: Literal["", "Memory"] = ""
    """Memory counts into the pod's memory limit; default: the node's disk."""
    size_limit: Quantity | None = None
    """Largest size, for instance 10Gi."""


class Volume(ApiModel):
    """A volume of the pod: a name and exactly one source."""

    name: Name
    """The name volumeMounts refer to; names starting with drumline- are the operator's."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim of the job's namespace."""
    config_map: NamedVolume | None = None
    """A ConfigMap of the job's namespace."""
    secret: NamedVolume | None = None
    """A Secret of the job's namespace."""
    empty_dir: EmptyDir | None = None
    """Scratch space that lives as long as the pod."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.persistentVolumeClaim), has(self.configMap), has(self.secret),"
            " has(self.emptyDir)].filter(given, given).size() == 1",
            message="a volume has exactly one of persistentVolumeClaim, configMap, secret and"
            " emptyDir",
        ),
        Rule(
            rule="!self.name.startsWith('drumline-')",
            message="name: volumes starting with drumline- are the operator's; choose another name",
            field_path=".name",
        ),
        Rule(
            rule=f"!has(self.secret) || !self.secret.name.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"secret: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens of jobs; name"
            " another Secret",
            field_path=".secret",
        ),
    )


_ABSOLUTE: Final = (
    "self.mountPath.startsWith('/') && self.mountPath != '/' && !self.mountPath.contains(':')"
    " && !self.mountPath.contains('//')"
    " && !self.mountPath.split('/').exists(part, part == '..' || part == '.')"
)
_RESERVED_MOUNT: Final = (
    f"!{list(RESERVED_MOUNTS)!r}.exists(taken, self.mountPath == taken"
    " || self.mountPath.startsWith(taken + '/'))"
    " && !['/dev', '/run', '/var', '/var/run', '/etc'].exists(above, self.mountPath == above"
    " || self.mountPath == above + '/')"
)


class VolumeMount(ApiModel):
    """Where one of `volumes` appears in the container."""

    name: Name
    """Name of one of `volumes`."""
    mount_path: Annotated[str, Field(min_length=1, max_length=512)]
    """Absolute folder in the container. Folders the operator or the kubelet mounts are refused."""
    sub_path: Annotated[str, Field(max_length=512)] | None = None
    """Folder inside the volume, relative; default: its root."""
    read_only: bool = False
    """Whether the container only reads it. Default: false."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=_ABSOLUTE,
            message="mountPath must be an absolute folder other than '/', without '..', '//' or"
            " ':'; write /data",
            field_path=".mountPath",
        ),
        Rule(
            rule=_RESERVED_MOUNT,
            message="mountPath is where the operator or the kubelet mounts (hosts, tokens, kernel"
            " folders); choose another folder",
            field_path=".mountPath",
        ),
        relative_path("subPath", optional=True),
    )
