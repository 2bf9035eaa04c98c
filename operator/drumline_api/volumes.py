"""Volumes of a pod template, and where they may be mounted.

A volume is a claim, a Secret or a ConfigMap of the job's namespace, a claim that is made for each
pod, a volume that a CSI driver makes, or scratch space. Mounts of the operator and the kubelet
cannot be hidden: the gang's hosts, tokens, the kernel's folders.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import (
    DISTINCT,
    TOKEN_SECRET_SUFFIX,
    ApiModel,
    LabelKey,
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


class SecretName(ApiModel):
    """A Secret of the job's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name."""


class CsiVolume(ApiModel):
    """A volume that a CSI driver makes for the pod alone, such as a bucket.

    The driver decides whether it offers that (volumeLifecycleModes of its CSIDriver).
    """

    driver: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    ]
    """Name of the CSIDriver, for instance gcsfuse.csi.storage.gke.io."""
    fs_type: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """File system to mount; absent: the driver's own default."""
    read_only: bool = False
    """Whether the pods only read it. Default: false."""
    volume_attributes: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
    """What the driver wants to know, for instance bucketName."""
    node_publish_secret_ref: SecretName | None = None
    """Secret of the job's namespace that the driver is given."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.nodePublishSecretRef)"
            f" || !self.nodePublishSecretRef.name.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"nodePublishSecretRef: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens"
            " of jobs; name another Secret",
            field_path=".nodePublishSecretRef",
        ),
    )


class ClaimRequests(ApiModel):
    """How much a claim asks for."""

    storage: Quantity
    """Its size, for instance 500Gi."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="quantity(string(self.storage)).isGreaterThan(quantity('0'))",
            message="storage must be greater than 0; raise it",
            field_path=".storage",
        ),
    )


class ClaimResources(ApiModel):
    """What a claim asks for."""

    requests: ClaimRequests
    """How much."""


class ClaimSpec(ApiModel):
    """The spec of a claim that is made for each pod, as in a PersistentVolumeClaim."""

    access_modes: Annotated[
        list[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]] | None,
        Field(min_length=1, max_length=3, json_schema_extra=DISTINCT),
    ] = None
    """How the volume can be mounted. Default: ReadWriteOnce."""
    storage_class_name: (
        Annotated[
            str,
            Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
        ]
        | None
    ) = None
    """StorageClass that provisions the volume. Absent: the cluster's default."""
    resources: ClaimResources
    """The volume's size."""


class ClaimTemplate(ApiModel):
    """What the claim of each pod is made from."""

    spec: ClaimSpec
    """The claim's spec."""


class EphemeralVolume(ApiModel):
    """A claim of each pod's own, named POD-VOLUME: Kubernetes makes it and deletes it with the pod.

    Its volume is provisioned for the node of the pod, whatever its StorageClass waits for.
    """

    volume_claim_template: ClaimTemplate
    """What the claims are made from."""


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
    csi: CsiVolume | None = None
    """A volume of a CSI driver for this pod alone."""
    ephemeral: EphemeralVolume | None = None
    """A claim that is made for this pod alone, and goes with it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.persistentVolumeClaim), has(self.configMap), has(self.secret),"
            " has(self.emptyDir), has(self.csi), has(self.ephemeral)]"
            ".filter(given, given).size() == 1",
            message="a volume has exactly one of persistentVolumeClaim, configMap, secret,"
            " emptyDir, csi and ephemeral",
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
