"""Define what the administrator adds to the pods of a pool: the only way beyond a template.

Fast networks need settings that a tenant must not choose: host folders, capabilities, a daemon
beside the training. GpuPools are cluster-scoped and written by the platform team, so only users who
may write a GpuPool decide them. A TrainingJob cannot.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import (
    CONTAINER_NAME,
    DISTINCT,
    ApiModel,
    LabelKey,
    LabelValue,
    Name,
    Rule,
    keyed_by,
)
from drumline_api.variables import LAUNCHER_ENV
from drumline_api.volumes import ClaimVolume, EmptyDir, NamedVolume, VolumeMount

Capability = Annotated[str, Field(min_length=2, max_length=32, pattern=r"^[A-Z][A-Z0-9_]*$")]
"""Linux capability in the spelling of Kubernetes: IPC_LOCK, without CAP_."""
# 40 characters, because the operator adds a prefix and a name has 63.
ShortName = Annotated[
    str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""A DNS label that is short enough for a prefix."""
Argument = Annotated[str, Field(max_length=8192)]
ProfileMounts = Annotated[
    list[VolumeMount] | None, Field(max_length=16, json_schema_extra=keyed_by("mountPath"))
]


class HostFolder(ApiModel):
    """A file or folder of the node."""

    path: Annotated[str, Field(min_length=1, max_length=512)]
    """Absolute path on the node."""
    type: Literal[
        "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice"
    ] = "Directory"
    """Required type of the path, as in a pod's hostPath. A pod does not start if the path has
    another type. Default: Directory."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')",
            message="path must be absolute and without '..'; for example /dev/infiniband",
            field_path=".path",
        ),
    )


class ProfileVolume(ApiModel):
    """A volume of the pool's pods: a name and exactly one source."""

    name: ShortName
    """Name for volumeMounts of the profile. A job cannot mount the volume."""
    host_path: HostFolder | None = None
    """A file or folder of the node."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim in the job's namespace. Every namespace with jobs in this pool needs it."""
    config_map: NamedVolume | None = None
    """A ConfigMap in the job's namespace. Every namespace with jobs in this pool needs it."""
    empty_dir: EmptyDir | None = None
    """Scratch space with the lifetime of the pod."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.hostPath), has(self.persistentVolumeClaim), has(self.configMap),"
            " has(self.emptyDir)].filter(given, given).size() == 1",
            message="a volume needs exactly one of hostPath, persistentVolumeClaim, configMap"
            " and emptyDir",
        ),
    )


class ProfileEnvVar(ApiModel):
    """An environment variable of a container."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable. Names that the launcher sets for its gang (DRUMLINE_..., MASTER_ADDR,
    RANK, ...) are rejected. Names of the loader (LD_LIBRARY_PATH) are allowed."""
    value: Annotated[str, Field(max_length=8192)]
    """Value as text."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # LD_LIBRARY_PATH is allowed here, because network plugins of NCCL need it.
        Rule(
            rule=f"!self.name.startsWith('DRUMLINE_') && !(self.name in {list(LAUNCHER_ENV)!r})",
            message="name: Drumline sets this variable for each job; remove it",
            field_path=".name",
        ),
    )


ProfileEnv = Annotated[
    list[ProfileEnvVar] | None, Field(max_length=64, json_schema_extra=keyed_by("name"))
]


class ProfileSidecar(ApiModel):
    """A container that runs beside the training for its whole duration, such as RxDM of TCPXO.

    It is an init container with restartPolicy Always (KEP-753). It starts before the training, is
    restarted if it ends, and does not affect the job's result.
    """

    name: ShortName
    """Name in the pod. Annotations of device injectors refer to it."""
    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")]
    """Image of the container, preferably with a digest."""
    command: Annotated[list[Argument] | None, Field(max_length=64)] = None
    """Command that replaces the image's entry point."""
    args: Annotated[list[Argument] | None, Field(max_length=64)] = None
    """Arguments of the command."""
    env: ProfileEnv = None
    """Environment variables."""
    volume_mounts: ProfileMounts = None
    """Mounts of the profile's volumes."""
    run_as_user: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """Numeric user of the process. 0 is root. Unset: the user of the pod."""
    capabilities: Annotated[
        list[Capability] | None, Field(max_length=16, json_schema_extra=DISTINCT)
    ] = None
    """Capabilities in addition to those of the container runtime, such as NET_ADMIN."""
    privileged: bool = False
    """If true, the container is privileged, with all rights of root on the node. Default: false."""

    rules: ClassVar[tuple[Rule, ...]] = (CONTAINER_NAME,)


# `exists` inside `all`: 16 mounts times 16 volumes at most.
_MOUNTED: Final = "has(self.volumes) && self.volumes.exists(volume, volume.name == mount.name)"


class PodProfile(ApiModel):
    """Additional settings of every pod in the pool, for bundled trainer and templates alike.

    A change applies to new pods only. The `restricted` Pod Security Standard rejects most of these
    settings, so the jobs' namespaces must not enforce it.
    """

    service_account_name: Annotated[
        str | None,
        Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
    ] = None
    """ServiceAccount in the job's namespace, such as for a cloud identity. Its token is not
    mounted. Unset: default."""
    runtime_class_name: Annotated[
        str | None,
        Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
    ] = None
    """RuntimeClass of the pods, such as nvidia."""
    run_as_user: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """Numeric user of every process. Overrides runAsUser of a template. 0 is root, which Kubernetes
    requires for effective capabilities. Unset: the template's user, or 65532."""
    capabilities: Annotated[
        list[Capability] | None, Field(max_length=16, json_schema_extra=DISTINCT)
    ] = None
    """Capabilities of the training container, such as IPC_LOCK. All others stay dropped. They are
    effective only with runAsUser 0 (kubernetes/enhancements#2763)."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
    """Annotations of the pods, such as the networks of a pod. They override those of a job."""
    labels: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels of the pods. They override those of a job, but never those of the operator."""
    image_pull_secrets: Annotated[
        list[Name] | None, Field(max_length=8, json_schema_extra=DISTINCT)
    ] = None
    """Names of Secrets in the job's namespace with credentials for the sidecars' registries."""
    env: ProfileEnv = None
    """Environment variables of the training container. A job's variable of the same name overrides
    them."""
    volumes: Annotated[
        list[ProfileVolume] | None, Field(max_length=16, json_schema_extra=keyed_by("name"))
    ] = None
    """Volumes of the pods, including host folders."""
    volume_mounts: ProfileMounts = None
    """Mounts of these volumes in the training container."""
    sidecars: Annotated[
        list[ProfileSidecar] | None, Field(max_length=4, json_schema_extra=keyed_by("name"))
    ] = None
    """Containers beside the training. They request no CPU and no memory, so the pods never have the
    QoS class Guaranteed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # Annotations have no such rule: injectors of the cloud need theirs.
        Rule(
            rule="!has(self.labels) || self.labels.all(key,"
            " !key.matches('^([^/]*[.])?drumline[.]dev/'))",
            message="labels of drumline.dev are reserved for the operator; remove them",
            field_path=".labels",
        ),
        Rule(
            rule=f"!has(self.volumeMounts) || self.volumeMounts.all(mount, {_MOUNTED})",
            message="volumeMounts: each name must be one of the profile's volumes; add the"
            " volume or fix the name",
            field_path=".volumeMounts",
        ),
        # Sidecars, mounts and volumes multiply. The bounds of all three keep the estimate low.
        Rule(
            rule="!has(self.sidecars) || self.sidecars.all(sidecar, !has(sidecar.volumeMounts)"
            f" || sidecar.volumeMounts.all(mount, {_MOUNTED}))",
            message="sidecars: each name of volumeMounts must be one of the profile's volumes;"
            " add the volume or fix the name",
            field_path=".sidecars",
        ),
        # Single capabilities are the administrator's decision. These two equal full control.
        Rule(
            rule="!has(self.capabilities)"
            " || self.capabilities.all(name, !(name in ['ALL', 'SYS_ADMIN']))",
            message="capabilities: ALL and SYS_ADMIN are equivalent to privileged, which no"
            " training container gets; list the needed capabilities, or use a sidecar",
            field_path=".capabilities",
        ),
    )
