"""Decode the API server's JSON to views of volumes, claims, storage classes and CSI objects."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Final

from msgspec import structs

from drumline.kube.codec import decoder_in_part, decoder_of
from drumline.kube.views import (
    ClaimView,
    CsiDriverView,
    CsiNodeView,
    ExpressionView,
    Sharing,
    StorageClassView,
    VolumeView,
)
from drumline.kube.volume_terms import MAX_TERMS, volume_terms
from drumline_api.base import ANNOTATION_SELECTED_NODE
from drumline_api.objects import storage

_MAX_NAME_CHARS: Final = 253
_MAX_DRIVERS: Final = 64
_MAX_HANDLE_CHARS: Final = 256
_DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


def _storage_class_view(stored: storage.StorageClass) -> StorageClassView:
    metadata = stored.metadata
    return StorageClassView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        provisioner=stored.provisioner,
        # An unset mode means Immediate, the server's default.
        binding_mode=stored.volume_binding_mode or "Immediate",
        is_default=any((metadata.annotations or {}).get(key) == "true" for key in _DEFAULT_CLASS),
        creation_time=metadata.creation_timestamp or "",
        topologies=tuple(
            tuple(
                ExpressionView(key=label.key, operator="In", values=tuple(label.values or ()))
                for label in term.match_label_expressions or ()
            )
            # More terms than this are of no practical use. Each one costs a pass over all nodes.
            for term in (stored.allowed_topologies or ())[:MAX_TERMS]
        ),
    )


def _volume_view(stored: storage.PersistentVolume) -> VolumeView:
    metadata, spec, csi = stored.metadata, stored.spec, stored.spec.csi
    unattached = (
        *(spec.azure_file, spec.cephfs, spec.glusterfs),
        *(spec.host_path, spec.local, spec.nfs),
    )
    return VolumeView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        affinity=volume_terms(stored),
        driver=sys.intern(csi.driver) if csi is not None else "",
        handle=_handle(csi.volume_handle) if csi is not None else "",
        unattached=any(source is not None for source in unattached),
    )


def _handle(text: str) -> str:
    """Return the identity of a volume, with a digest in place of what is too long to keep."""
    if len(text) <= _MAX_HANDLE_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: _MAX_HANDLE_CHARS - len(digest)]}{digest}"


def _volume_in_part(stored: storage.PersistentVolume) -> VolumeView:
    return structs.replace(_volume_view(stored), unread=True)


def _csi_node_view(stored: storage.CsiNode) -> CsiNodeView:
    metadata, drivers = stored.metadata, (stored.spec.drivers or ())[:_MAX_DRIVERS]
    return CsiNodeView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        limits=tuple(
            (sys.intern(driver.name), driver.allocatable.count)
            for driver in drivers
            # A driver without a count can attach any number.
            if driver.allocatable is not None and driver.allocatable.count is not None
        ),
        topology=tuple(
            (sys.intern(driver.name), tuple(map(sys.intern, driver.topology_keys or ())))
            for driver in drivers
        ),
    )


def _csi_driver_view(stored: storage.CsiDriverObject) -> CsiDriverView:
    metadata = stored.metadata
    return CsiDriverView(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        attaches=stored.spec.attach_required is not False,
        serves_pods="Ephemeral" in (stored.spec.volume_lifecycle_modes or ()),
    )


_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
"""Older name of a claim's class. Kubernetes reads it before the field."""
_SHARING: Final[Mapping[tuple[str, ...], Sharing]] = {
    ("ReadWriteOnce",): Sharing.ONE_NODE,
    ("ReadWriteOncePod",): Sharing.ONE_POD,
}
"""Claims with more access modes than one are shared by one of the others."""


def _claim_view(stored: storage.PersistentVolumeClaim) -> ClaimView:
    metadata, spec = stored.metadata, stored.spec
    # A bound claim has the modes of its volume, which may be more than it requested.
    modes = stored.status.access_modes or spec.access_modes or ()
    # Only a manifest that nobody applied has no phase.
    phase = stored.status.phase or ("Bound" if spec.volume_name else "Pending")
    annotations = metadata.annotations or {}
    selected = annotations.get(ANNOTATION_SELECTED_NODE, "")
    storage_class = annotations.get(_CLASS_ANNOTATION, spec.storage_class_name)
    return ClaimView(
        namespace=sys.intern(metadata.namespace),
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        volume=spec.volume_name or "",
        storage_class=sys.intern((storage_class or "")[:_MAX_NAME_CHARS]),
        names_class=storage_class is not None,
        bound=phase == "Bound",
        lost=phase == "Lost",
        deleting=bool(metadata.deletion_timestamp),
        # A tenant may write any text there, and no node or class has a longer name.
        selected_node="" if spec.volume_name else sys.intern(selected[:_MAX_NAME_CHARS]),
        sharing=_SHARING.get(tuple(modes), Sharing.ANY),
        is_block=spec.volume_mode == "Block",
    )


def _claim_in_part(stored: storage.PersistentVolumeClaim) -> ClaimView:
    return structs.replace(_claim_view(stored), unread=True)


storage_class = decoder_of(storage.StorageClass, _storage_class_view)
csi_node = decoder_of(storage.CsiNode, _csi_node_view)
csi_driver = decoder_of(storage.CsiDriverObject, _csi_driver_view)
persistent_volume = decoder_of(storage.PersistentVolume, _volume_view)
persistent_volume_claim = decoder_of(storage.PersistentVolumeClaim, _claim_view)
persistent_volume_in_part = decoder_in_part(storage.PersistentVolume, _volume_in_part)
persistent_volume_claim_in_part = decoder_in_part(storage.PersistentVolumeClaim, _claim_in_part)
