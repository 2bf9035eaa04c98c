"""The pod template of one's own: an allow-list, not a PodSpec.

What is missing here is missing on purpose: nodeName, schedulerName, host namespaces, privilege,
service accounts and init containers belong to the operator or to the cluster's administrator.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drumline.api.base import ApiModel, LabelKey, LabelValue, Name

Quantity = Annotated[
    str,
    Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"),
]
ResourceList = Annotated[dict[LabelKey, Quantity], Field(max_length=16)]
"""Requests and limits of one pod besides its GPUs: cpu, memory, ephemeral-storage, RDMA devices."""


class Toleration(ApiModel):
    """As in a pod."""

    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KeyRef(ApiModel):
    """A key of a Secret or ConfigMap in the job's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    key: Annotated[str, Field(min_length=1, max_length=253)]
    optional: bool = False


class EnvVarSource(ApiModel):
    """Where a variable's value comes from."""

    secret_key_ref: KeyRef | None = None
    config_map_key_ref: KeyRef | None = None


class EnvVar(ApiModel):
    """As in a container. Names starting with DRUMLINE_ and loader overrides are refused."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=8192)] | None = None
    value_from: EnvVarSource | None = None


class ClaimVolume(ApiModel):
    """A PersistentVolumeClaim of the job's namespace."""

    claim_name: Name
    read_only: bool = False


class NamedVolume(ApiModel):
    """A Secret or ConfigMap of the job's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]


class EmptyDir(ApiModel):
    """Scratch space of the pod."""

    medium: Literal["", "Memory"] = ""
    size_limit: Quantity | None = None


class Volume(ApiModel):
    """Exactly one source."""

    name: Name
    persistent_volume_claim: ClaimVolume | None = None
    config_map: NamedVolume | None = None
    secret: NamedVolume | None = None
    empty_dir: EmptyDir | None = None


class VolumeMount(ApiModel):
    """As in a container."""

    name: Name
    mount_path: Annotated[str, Field(min_length=1, max_length=512)]
    sub_path: Annotated[str, Field(max_length=512)] | None = None
    read_only: bool = False


class PodTemplate(ApiModel):
    """One container of any image; every pod of the gang is the same."""

    image: Annotated[str, Field(min_length=1, max_length=512)]
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: Annotated[list[Name] | None, Field(max_length=8)] = None
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)
    ] = None
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    working_dir: Annotated[str, Field(max_length=512)] | None = None
    env: Annotated[list[EnvVar] | None, Field(max_length=256)] = None
    volumes: Annotated[list[Volume] | None, Field(max_length=32)] = None
    volume_mounts: Annotated[list[VolumeMount] | None, Field(max_length=32)] = None
    run_as_user: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
