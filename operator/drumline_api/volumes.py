"""Define volumes of a pod template, and their allowed mount points.

A volume is a claim, a Secret or a ConfigMap in the job's namespace, a claim created for each pod, a
CSI volume, or scratch space. Volumes cannot hide mounts of the operator and the kubelet: the gang's
hosts, tokens, kernel folders.
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
    Subdomain,
    relative_path,
)

# Prefixes: a mount below one of them is rejected too.
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
"""Mount points of the operator and the kubelet: the gang's hosts, the agent's Python, tokens,
kernel folders."""


class ClaimVolume(ApiModel):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: Name
    """Name of the claim."""
    read_only: bool = False
    """If true, the pods mount it read-only. Default: false."""


class NamedVolume(ApiModel):
    """A Secret or ConfigMap in the job's namespace."""

    name: Subdomain
    """Name of the Secret or ConfigMap. Its keys become files."""


class EmptyDir(ApiModel):
    """Scratch space of the pod."""

    # An enum with the empty text, because Kubernetes uses it as the default.
    medium: Literal["", "Memory"] = ""
    """Memory: RAM, which counts toward the pod's memory limit. Default: the node's disk."""
    size_limit: Quantity | None = None
    """Maximum size, such as 10Gi."""


class SecretName(ApiModel):
    """A Secret in the job's namespace."""

    name: Subdomain
    """Name of the Secret."""


class CsiVolume(ApiModel):
    """A volume that a CSI driver creates for one pod, such as a bucket.

    The driver must support it (volumeLifecycleModes of its CSIDriver).
    """

    driver: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    ]
    """Name of the CSIDriver, such as gcsfuse.csi.storage.gke.io."""
    fs_type: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """File system to mount. Unset: the driver's default."""
    read_only: bool = False
    """If true, the pods mount it read-only. Default: false."""
    volume_attributes: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
    """Attributes for the driver, such as bucketName."""
    node_publish_secret_ref: SecretName | None = None
    """Secret in the job's namespace that is passed to the driver."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # The driver would receive the token with the operator's rights on agents.
        Rule(
            rule="!has(self.nodePublishSecretRef)"
            f" || !self.nodePublishSecretRef.name.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"nodePublishSecretRef: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens"
            " of jobs; name another Secret",
            field_path=".nodePublishSecretRef",
        ),
    )


class ClaimRequests(ApiModel):
    """Requests of a claim."""

    storage: Quantity
    """Size, such as 500Gi."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # `quantity` needs Kubernetes 1.29 or later in CRD rules.
        Rule(
            rule="quantity(string(self.storage)).isGreaterThan(quantity('0'))",
            message="storage must be greater than 0; raise it",
            field_path=".storage",
        ),
    )


class ClaimResources(ApiModel):
    """Resources of a claim."""

    requests: ClaimRequests
    """Requested resources."""


class ClaimSpec(ApiModel):
    """Spec of a claim that is created for each pod, as in a PersistentVolumeClaim."""

    access_modes: Annotated[
        list[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]] | None,
        # A set of three values: order and duplicates have no meaning.
        Field(min_length=1, max_length=3, json_schema_extra=DISTINCT),
    ] = None
    """Access modes of the volume. Default: ReadWriteOnce."""
    storage_class_name: (
        Annotated[
            str,
            Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
        ]
        | None
    ) = None
    """StorageClass that provisions the volume. Absent: the cluster's default."""
    resources: ClaimResources
    """Size of the volume."""


class ClaimTemplate(ApiModel):
    """Template of each pod's claim."""

    spec: ClaimSpec
    """Spec of the claim."""


class EphemeralVolume(ApiModel):
    """A claim per pod, named POD-VOLUME. Kubernetes creates and deletes it with the pod.

    Its volume is provisioned for the pod's node, even if its StorageClass binds immediately.
    """

    volume_claim_template: ClaimTemplate
    """Template of the claims."""


class Volume(ApiModel):
    """A volume of the pod: a name and exactly one source."""

    # 63 characters, as for a volume of a pod.
    name: Name
    """Name for volumeMounts. Names that start with drumline- are reserved for the operator."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim in the job's namespace."""
    config_map: NamedVolume | None = None
    """A ConfigMap in the job's namespace."""
    secret: NamedVolume | None = None
    """A Secret in the job's namespace."""
    empty_dir: EmptyDir | None = None
    """Scratch space with the lifetime of the pod."""
    csi: CsiVolume | None = None
    """A CSI volume for this pod only."""
    ephemeral: EphemeralVolume | None = None
    """A claim that is created for this pod only, and deleted with it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # A list of booleans counts the sources. Each has a constant cost.
            rule="[has(self.persistentVolumeClaim), has(self.configMap), has(self.secret),"
            " has(self.emptyDir), has(self.csi), has(self.ephemeral)]"
            ".filter(given, given).size() == 1",
            message="a volume needs exactly one of persistentVolumeClaim, configMap, secret,"
            " emptyDir, csi and ephemeral",
        ),
        Rule(
            # Reserved names let the operator add volumes without a conflict.
            rule="!self.name.startsWith('drumline-')",
            message="name: volume names that start with drumline- are reserved for the operator;"
            " choose another name",
            field_path=".name",
        ),
        Rule(
            rule=f"!has(self.secret) || !self.secret.name.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"secret: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens of jobs; name"
            " another Secret",
            field_path=".secret",
        ),
    )


# `split` and `exists` are bounded by the 512 characters of the path.
_ABSOLUTE: Final = (
    "self.mountPath.startsWith('/') && self.mountPath != '/' && !self.mountPath.contains(':')"
    " && !self.mountPath.contains('//')"
    " && !self.mountPath.split('/').exists(part, part == '..' || part == '.')"
)
# Parents of reserved folders would hide them, so they are compared exactly.
_RESERVED_MOUNT: Final = (
    f"!{list(RESERVED_MOUNTS)!r}.exists(taken, self.mountPath == taken"
    " || self.mountPath.startsWith(taken + '/'))"
    " && !['/dev', '/run', '/var', '/var/run', '/etc'].exists(above, self.mountPath == above"
    " || self.mountPath == above + '/')"
)


class VolumeMount(ApiModel):
    """A mount of one of `volumes` in the container."""

    name: Name
    """Name of one of `volumes`."""
    mount_path: Annotated[str, Field(min_length=1, max_length=512)]
    """Absolute folder in the container. Folders that the operator or the kubelet mounts are
    rejected."""
    sub_path: Annotated[str, Field(max_length=512)] | None = None
    """Folder inside the volume (relative). Default: its root."""
    read_only: bool = False
    """If true, the container mounts it read-only. Default: false."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=_ABSOLUTE,
            message="mountPath must be an absolute folder other than '/', without '..', '//' or"
            " ':'; for example /data",
            field_path=".mountPath",
        ),
        Rule(
            rule=_RESERVED_MOUNT,
            message="mountPath is reserved for the operator or the kubelet (hosts, tokens,"
            " kernel folders); choose another folder",
            field_path=".mountPath",
        ),
        # Optional: `has` comes first, because CEL fails on an absent field.
        relative_path("subPath", optional=True),
    )
