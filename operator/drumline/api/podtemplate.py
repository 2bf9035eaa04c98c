"""The pod template of one's own: an allow-list, not a PodSpec.

What is missing here is missing on purpose: nodeName, schedulerName, host namespaces, privilege,
service accounts and init containers belong to the operator or to the cluster's administrator. The
CEL rules below refuse what is spelled inside an allowed field and would still reach past it: the
variables and mount points by which the operator wires the gang together.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from drumline.api.base import DISTINCT, ApiModel, LabelKey, LabelValue, Name, Rule, keyed_by

RESERVED_ENV: Final = (
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "NODE_RANK",
    "NPROC_PER_NODE",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)
"""Variables the operator sets for torchrun, JAX and MPI, and those that reach into the loader or
the container runtime. A template that names one is refused."""

RESERVED_MOUNTS: Final = (
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/proc",
    "/sys",
    "/run/drumline",
    "/run/secrets",
    "/var/run/drumline",
    "/var/run/secrets",
)
"""Where the operator or the kubelet mounts: the gang's hosts, tokens, the kernel's own folders."""


def _quantity_text(value: object) -> object:
    """YAML reads `cpu: 4` as a number; quantities are text from here on."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    Field(max_length=32, pattern=_QUANTITY_PATTERN),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "maxLength": 32, "pattern": _QUANTITY_PATTERN}
    ),
]
"""A Kubernetes quantity without sign or exponent: `4`, `500m`, `1.5Gi`."""
ResourceList = Annotated[dict[LabelKey, Quantity], Field(max_length=16)]
"""Requests and limits of one pod besides its GPUs: cpu, memory, ephemeral-storage, RDMA devices."""


def relative_path(field: str, *, optional: bool = False) -> Rule:
    """`field` stays inside the volume it is resolved in."""
    inside = f"!self.{field}.startsWith('/') && !self.{field}.split('/').exists(part, part == '..')"
    return Rule(
        rule=f"!has(self.{field}) || ({inside})" if optional else inside,
        message=f"{field} is relative to the volume: no leading '/' and no '..'; write runs/a",
        field_path=f".{field}",
    )


class Toleration(ApiModel):
    """A taint that the job's pods accept, as in a pod."""

    key: LabelKey | None = None
    """The taint's key. Taints of node state (node.kubernetes.io/...) cannot be tolerated."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal compares `value`, Exists accepts any. Default: Equal."""
    value: LabelValue | None = None
    """The taint's value, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; absent: all of them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.key)",
            message="key is required: a toleration of every taint would reach cordoned and failing"
            " nodes; name the taint's key",
        ),
        Rule(
            rule="!has(self.key) || !self.key.matches('^node(-role)?[.]kubernetes[.]io/')",
            message="key: taints of node state and of the control plane cannot be tolerated; remove"
            " this toleration",
            field_path=".key",
        ),
        Rule(
            rule="self.operator == 'Equal' || !has(self.value)",
            message="value has no meaning with operator Exists; remove it or use operator Equal",
            field_path=".value",
        ),
    )


class KeyRef(ApiModel):
    """A key of a Secret or ConfigMap in the job's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret or ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key inside it."""
    optional: bool = False
    """Whether the pod starts without it. Default: false."""


class EnvVarSource(ApiModel):
    """Where a variable's value comes from: exactly one."""

    secret_key_ref: KeyRef | None = None
    """A key of a Secret in the job's namespace."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap in the job's namespace."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",
            message="valueFrom needs exactly one of secretKeyRef and configMapKeyRef",
        ),
    )


class EnvVar(ApiModel):
    """One variable of the container."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Names the operator sets (DRUMLINE_..., MASTER_ADDR, RANK, ...) and those of the loader and
    the GPU runtime (LD_PRELOAD, NVIDIA_VISIBLE_DEVICES, ...) are refused."""
    value: Annotated[str, Field(max_length=8192)] | None = None
    """The value as text. `$(OTHER)` is expanded as in any container."""
    value_from: EnvVarSource | None = None
    """The value from a Secret or ConfigMap."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"!self.name.startsWith('DRUMLINE_') && !(self.name in {list(RESERVED_ENV)!r})",
            message="name: this variable is set by Drumline or reaches into the loader or the GPU"
            " runtime; remove it (the launch variables are there already)",
            message_expression="'name: %s is set by Drumline or reaches into the loader or the GPU"
            " runtime; remove it (the launch variables are there already)'.format([self.name])",
            field_path=".name",
        ),
        Rule(
            rule="!(has(self.value) && has(self.valueFrom))",
            message="value and valueFrom exclude each other; remove one",
        ),
    )


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


class PodTemplate(ApiModel):
    """One container of any image; every pod of the gang is the same.

    An allow-list of what a training container needs. The container runs without root, privilege,
    service account or host access, and finds its gang in torchrun, JAX and MPI variables.
    """

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\s]+$")]
    """The container's image, best with a digest."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """As in a container; absent: the cluster's rule."""
    image_pull_secrets: Annotated[
        list[Name] | None, Field(max_length=8, json_schema_extra=DISTINCT)
    ] = None
    """Names of Secrets of the job's namespace with registry credentials."""
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)
    ] = None
    """Replaces the image's entry point."""
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    """Arguments of the command."""
    working_dir: Annotated[str, Field(max_length=512)] | None = None
    """Folder the command starts in; default: the image's."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=256, json_schema_extra=keyed_by("name"))
    ] = None
    """Variables besides those by which the launcher finds its gang."""
    volumes: Annotated[
        list[Volume] | None, Field(max_length=32, json_schema_extra=keyed_by("name"))
    ] = None
    """Claims, Secrets, ConfigMaps and scratch space."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Where the volumes appear. /dev/shm is there already, as large as the memory limit."""
    run_as_user: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """Numeric user of the process, never 0. Default: 65532."""
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds between SIGTERM and SIGKILL. Default: 30."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
    """Annotations of the pods; those of Kubernetes and Drumline themselves are refused."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes)"
            " && self.volumes.exists(volume, volume.name == mount.name))",
            message="volumeMounts: each name must be one of volumes; add the volume or fix the"
            " name",
            field_path=".volumeMounts",
        ),
        Rule(
            rule="!has(self.annotations) || self.annotations.all(key,"
            " !key.matches("
            "'^([^/]*[.])?(kubernetes[.]io|k8s[.]io|drumline[.]dev|karpenter[.]sh)/'))",
            message="annotations of kubernetes.io, k8s.io, karpenter.sh and drumline.dev are the"
            " platform's; remove them",
            field_path=".annotations",
        ),
    )
