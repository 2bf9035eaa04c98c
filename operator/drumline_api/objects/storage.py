"""Fields of stored volumes, claims, storage classes and CSI objects that are read."""

from __future__ import annotations

from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata, ObjectPart


class VolumeNodeTerms(ObjectPart, frozen=True):
    """The nodes from which a volume can be mounted: all conditions of at least one term."""

    node_selector_terms: list[builtin.PodNodeTerm] | None = None


class VolumeNodeAffinity(ObjectPart, frozen=True):
    """A volume's node affinity."""

    required: VolumeNodeTerms | None = None


class CsiSource(ObjectPart, frozen=True):
    """A volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""


class UnattachedSource(ObjectPart, frozen=True):
    """A source that no node attaches, so that several nodes mount it; nothing of it is read."""


class PersistentVolumeSpec(ObjectPart, frozen=True):
    """A PersistentVolume's spec."""

    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiSource | None = None
    azure_file: UnattachedSource | None = None
    cephfs: UnattachedSource | None = None
    glusterfs: UnattachedSource | None = None
    host_path: UnattachedSource | None = None
    local: UnattachedSource | None = None
    nfs: UnattachedSource | None = None


class PersistentVolume(ObjectPart, frozen=True):
    """A PersistentVolume."""

    metadata: Metadata
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class VolumeClaimSpec(ObjectPart, frozen=True):
    """A PersistentVolumeClaim's spec."""

    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None


class VolumeClaimStatus(ObjectPart, frozen=True):
    """A PersistentVolumeClaim's status."""

    phase: str | None = None
    access_modes: list[str] | None = None


class PersistentVolumeClaim(ObjectPart, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: Metadata
    spec: VolumeClaimSpec = VolumeClaimSpec()
    status: VolumeClaimStatus = VolumeClaimStatus()


class VolumeLimits(ObjectPart, frozen=True):
    """The number of volumes that a CSI driver can attach to a node."""

    count: int | None = None


class CsiDriver(ObjectPart, frozen=True):
    """A CSI driver of a node."""

    name: str
    allocatable: VolumeLimits | None = None
    topology_keys: list[str] | None = None


class CsiDriverSpec(ObjectPart, frozen=True):
    """A CSIDriver's spec."""

    # The API server's default is true.
    attach_required: bool | None = None
    volume_lifecycle_modes: list[str] | None = None


class CsiDriverObject(ObjectPart, frozen=True):
    """A CSIDriver."""

    metadata: Metadata
    spec: CsiDriverSpec = CsiDriverSpec()


class CsiNodeSpec(ObjectPart, frozen=True):
    """A CSINode's spec."""

    drivers: list[CsiDriver] | None = None


class CsiNode(ObjectPart, frozen=True):
    """A CSINode."""

    metadata: Metadata
    spec: CsiNodeSpec = CsiNodeSpec()


class TopologyLabel(ObjectPart, frozen=True):
    """The values that a node's label may have."""

    key: str = ""
    values: list[str] | None = None


class TopologyTerm(ObjectPart, frozen=True):
    """Labels of nodes for which a class provisions volumes: all of them."""

    match_label_expressions: list[TopologyLabel] | None = None


class StorageClass(ObjectPart, frozen=True):
    """A StorageClass."""

    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] | None = None
