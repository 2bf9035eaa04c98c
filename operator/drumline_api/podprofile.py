"""What the administrator adds to the pods of a pool: the only way to more than a template may ask.

Fast networks want what no tenant may choose for himself: folders of the node, capabilities, a
daemon beside the training. GpuPools are cluster-scoped and written by the platform team, so who may
write one may decide this; a TrainingJob cannot.
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
"""A Linux capability as Kubernetes spells it: IPC_LOCK, without CAP_."""
ShortName = Annotated[
    str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""A DNS label that leaves room for a prefix."""
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
    """What must be there, as in a pod's hostPath; a pod does not start without it. Default:
    Directory."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')",
            message="path must be absolute and without '..'; write /dev/infiniband",
            field_path=".path",
        ),
    )


class ProfileVolume(ApiModel):
    """A volume of the pool's pods: a name and exactly one source."""

    name: ShortName
    """The name volumeMounts of the profile refer to; a job cannot mount it elsewhere."""
    host_path: HostFolder | None = None
    """A file or folder of the node."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim of the job's namespace; every namespace whose jobs come here needs it."""
    config_map: NamedVolume | None = None
    """A ConfigMap of the job's namespace; likewise."""
    empty_dir: EmptyDir | None = None
    """Scratch space that lives as long as the pod."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.hostPath), has(self.persistentVolumeClaim), has(self.configMap),"
            " has(self.emptyDir)].filter(given, given).size() == 1",
            message="a volume has exactly one of hostPath, persistentVolumeClaim, configMap and"
            " emptyDir",
        ),
    )


class ProfileEnvVar(ApiModel):
    """One variable of a container."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Names by which the launcher finds its gang (DRUMLINE_..., MASTER_ADDR, RANK, ...) are
    refused; those of the loader (LD_LIBRARY_PATH) are not."""
    value: Annotated[str, Field(max_length=8192)]
    """The value as text."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"!self.name.startsWith('DRUMLINE_') && !(self.name in {list(LAUNCHER_ENV)!r})",
            message="name: this variable is set by Drumline for each job; remove it",
            field_path=".name",
        ),
    )


ProfileEnv = Annotated[
    list[ProfileEnvVar] | None, Field(max_length=64, json_schema_extra=keyed_by("name"))
]


class ProfileSidecar(ApiModel):
    """A container that runs beside the training for as long as that does, such as RxDM of TCPXO.

    An init container with restartPolicy Always (KEP-753): it starts before the training, is
    restarted where it ends, and decides nothing about the job.
    """

    name: ShortName
    """Its name in the pod, which annotations of device injectors refer to."""
    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")]
    """The container's image, best with a digest."""
    command: Annotated[list[Argument] | None, Field(max_length=64)] = None
    """Replaces the image's entry point."""
    args: Annotated[list[Argument] | None, Field(max_length=64)] = None
    """Arguments of the command."""
    env: ProfileEnv = None
    """Its variables."""
    volume_mounts: ProfileMounts = None
    """Where the profile's volumes appear in it."""
    run_as_user: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """Numeric user of its process; 0 is root. Absent: that of the pod."""
    capabilities: Annotated[
        list[Capability] | None, Field(max_length=16, json_schema_extra=DISTINCT)
    ] = None
    """Capabilities beside those that the container runtime gives, such as NET_ADMIN."""
    privileged: bool = False
    """Whether it runs with every right of the node's root. Default: false."""

    rules: ClassVar[tuple[Rule, ...]] = (CONTAINER_NAME,)


_MOUNTED: Final = "has(self.volumes) && self.volumes.exists(volume, volume.name == mount.name)"


class PodProfile(ApiModel):
    """What every pod of the pool gets beside what its job says, training and templates alike.

    Pods that are made from then on have it; those that run stay as they are. Most of it is more
    than the `restricted` Pod Security Standard allows, so the jobs' namespaces must not enforce
    that.
    """

    service_account_name: Annotated[
        str | None,
        Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
    ] = None
    """ServiceAccount of the job's namespace, as for a cloud's identity. No token of it is mounted.
    Absent: default."""
    runtime_class_name: Annotated[
        str | None,
        Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
    ] = None
    """RuntimeClass of the pods, such as nvidia."""
    run_as_user: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """Numeric user of every process, before runAsUser of a template; 0 is root, without which
    Kubernetes makes no capability effective. Absent: the template's, else 65532."""
    capabilities: Annotated[
        list[Capability] | None, Field(max_length=16, json_schema_extra=DISTINCT)
    ] = None
    """Capabilities of the training container, such as IPC_LOCK; all others stay dropped. They count
    for runAsUser 0 alone (kubernetes/enhancements#2763)."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
    """Annotations of the pods, before those of a job, such as the networks of a pod."""
    labels: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels of the pods, before those of a job; never before the operator's own."""
    image_pull_secrets: Annotated[
        list[Name] | None, Field(max_length=8, json_schema_extra=DISTINCT)
    ] = None
    """Names of Secrets of the job's namespace with credentials for the sidecars' registries."""
    env: ProfileEnv = None
    """Variables of the training container; a job's own of the same name count instead."""
    volumes: Annotated[
        list[ProfileVolume] | None, Field(max_length=16, json_schema_extra=keyed_by("name"))
    ] = None
    """Volumes of the pods, folders of the node among them."""
    volume_mounts: ProfileMounts = None
    """Where these volumes appear in the training container."""
    sidecars: Annotated[
        list[ProfileSidecar] | None, Field(max_length=4, json_schema_extra=keyed_by("name"))
    ] = None
    """Containers beside the training. They request no CPU and no memory, so that pods with them are
    never Guaranteed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.labels) || self.labels.all(key,"
            " !key.matches('^([^/]*[.])?drumline[.]dev/'))",
            message="labels of drumline.dev are the operator's; remove them",
            field_path=".labels",
        ),
        Rule(
            rule=f"!has(self.volumeMounts) || self.volumeMounts.all(mount, {_MOUNTED})",
            message="volumeMounts: each name must be one of volumes of the profile; add the volume"
            " or fix the name",
            field_path=".volumeMounts",
        ),
        Rule(
            rule="!has(self.sidecars) || self.sidecars.all(sidecar, !has(sidecar.volumeMounts)"
            f" || sidecar.volumeMounts.all(mount, {_MOUNTED}))",
            message="sidecars: each name of volumeMounts must be one of volumes of the profile; add"
            " the volume or fix the name",
            field_path=".sidecars",
        ),
        Rule(
            rule="!has(self.capabilities)"
            " || self.capabilities.all(name, !(name in ['ALL', 'SYS_ADMIN']))",
            message="capabilities: ALL and SYS_ADMIN are as much as privilege, which no training"
            " container gets; name what it needs, or run what needs it as a sidecar",
            field_path=".capabilities",
        ),
    )
