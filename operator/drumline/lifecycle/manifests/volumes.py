"""Volumes of pods, and their mounts in the main container.

A volume's claim that is made for each pod waits for a node if its storage class has
WaitForFirstConsumer. Kubernetes makes that claim once the pod exists, with the annotations of its
template (https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#generic-ephemeral-volumes).
So the node is written into the template, and no component has to find the claim.
"""

from __future__ import annotations

from typing import Any, Final

from drumline.lifecycle.manifests.pod_input import PodInput
from drumline.lifecycle.model.job import CHECKPOINT_FOLDER, DATA_FOLDER
from drumline_api.base import ANNOTATION_SELECTED_NODE
from drumline_api.podtemplate import PodTemplate
from drumline_api.volumes import EphemeralVolume, Volume
from drumline_contract import TOKEN_FILE

Json = dict[str, Any]

HOME_FOLDER: Final = "/home/drumline"
HOME_VOLUME: Final = "drumline-home"
TOKEN_MOUNT: Final[Json] = {
    "name": "drumline-token",
    "mountPath": TOKEN_FILE.rsplit("/", 1)[0],
    "readOnly": True,
}
"""Folder in which agents read the token."""
_SHM_FOLDER: Final = "/dev/shm"  # noqa: S108 - the pod's own
_SHM_VOLUME: Final[Json] = {"name": "drumline-shm", "emptyDir": {"medium": "Memory"}}
"""NCCL and data workers need more than a runtime's default 64 MiB; counts as pod memory."""
_SHM_MOUNT: Final[Json] = {"name": "drumline-shm", "mountPath": _SHM_FOLDER}


def trainer_volumes(pod: PodInput) -> tuple[list[Json], list[Json]]:
    """Return the volumes of a pod of the bundled trainer, and its container's mounts."""
    checkpoint, trainer = pod.job.spec.checkpoint, pod.job.spec.trainer
    volumes: list[Json] = [{"name": "tmp", "emptyDir": {}}, _SHM_VOLUME, token_volume(pod)]
    mounts: list[Json] = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        _SHM_MOUNT,
        TOKEN_MOUNT,
    ]
    if checkpoint is not None and checkpoint.claim_name is not None:
        volumes.append(_claim_volume("checkpoints", checkpoint.claim_name, read_only=False))
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINT_FOLDER})
    if trainer is not None and trainer.data is not None:
        volumes.append(_claim_volume("data", trainer.data.claim_name, read_only=True))
        mounts.append({"name": "data", "mountPath": DATA_FOLDER, "readOnly": True})
    return (
        [*volumes, *pod.platform.get("volumes", [])],
        [*mounts, *pod.platform.get("volumeMounts", [])],
    )


def template_volumes(
    template: PodTemplate, *, node: str, home: bool
) -> tuple[list[Json], list[Json]]:
    """Return the volumes of a template's pod, and its main container's mounts.

    Args:
        template: template of the pod.
        node: node of the pod.
        home: whether the operator gives the container a home.
    """
    volumes = [_template_volume(volume, node=node) for volume in template.volumes or []]
    mounts = [mount.as_json() for mount in template.volume_mounts or []]
    # A template may mount its own volume at these folders.
    taken = {mount["mountPath"] for mount in mounts}
    if _SHM_FOLDER not in taken:
        volumes.append(_SHM_VOLUME)
        mounts.append(_SHM_MOUNT)
    if home and HOME_FOLDER not in taken:
        volumes.append({"name": HOME_VOLUME, "emptyDir": {}})
        mounts.append({"name": HOME_VOLUME, "mountPath": HOME_FOLDER})
    return volumes, mounts


def with_shared_claims(spec: Json) -> Json:
    """Return a pod's spec in which a claim with two volumes can be written through one of them.

    A kubelet mounts a claim once for a pod: one read-only volume makes all of them read-only. So
    where the volumes of a claim differ, the mounts are read-only instead.
    """
    # Phase 1: claims with a read-only and a writable volume.
    by_claim: dict[str, list[Json]] = {}
    for volume in spec["volumes"]:
        if "persistentVolumeClaim" in volume:
            by_claim.setdefault(volume["persistentVolumeClaim"]["claimName"], []).append(volume)
    protected = {
        volume["name"]
        for volumes in by_claim.values()
        if len({_is_read_only(volume) for volume in volumes}) > 1
        for volume in volumes
        if _is_read_only(volume)
    }
    if not protected:
        return spec
    # Phase 2: mount their volumes writable, and protect the read-only mounts one by one.
    volumes = [
        _claim_volume(each["name"], each["persistentVolumeClaim"]["claimName"], read_only=False)
        if each["name"] in protected
        else each
        for each in spec["volumes"]
    ]
    containers = {
        kind: [_with_protected_mounts(container, protected) for container in spec[kind]]
        for kind in ("initContainers", "containers")
        if kind in spec
    }
    return {**spec, "volumes": volumes, **containers}


def _is_read_only(volume: Json) -> bool:
    return bool(volume["persistentVolumeClaim"].get("readOnly"))


def _with_protected_mounts(container: Json, protected: set[str]) -> Json:
    mounts = [
        {**mount, "readOnly": True} if mount["name"] in protected else mount
        for mount in container.get("volumeMounts", [])
    ]
    return {**container, "volumeMounts": mounts} if mounts else container


def token_volume(pod: PodInput) -> Json:
    """Return the volume with the job's token; see `children.token_secret`."""
    return {
        "name": "drumline-token",
        "secret": {"secretName": pod.token_secret, "defaultMode": 0o440},
    }


def _claim_volume(name: str, claim: str, *, read_only: bool) -> Json:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}


def _template_volume(volume: Volume, *, node: str) -> Json:
    manifest: Json = {"name": volume.name}
    if volume.persistent_volume_claim is not None:
        claim = volume.persistent_volume_claim
        return _claim_volume(volume.name, claim.claim_name, read_only=claim.read_only)
    if volume.config_map is not None:
        manifest["configMap"] = {"name": volume.config_map.name}
    elif volume.secret is not None:
        manifest["secret"] = {"secretName": volume.secret.name}
    elif volume.csi is not None:
        manifest["csi"] = volume.csi.as_json()
    elif volume.ephemeral is not None:
        manifest["ephemeral"] = _claim_of_pod(volume.ephemeral, node=node)
    else:
        scratch = volume.empty_dir
        manifest["emptyDir"] = scratch.as_json() if scratch else {}
    return manifest


def _claim_of_pod(volume: EphemeralVolume, *, node: str) -> Json:
    wanted = volume.volume_claim_template.spec.as_json()
    return {
        "volumeClaimTemplate": {
            "metadata": {"annotations": {ANNOTATION_SELECTED_NODE: node}},
            "spec": {"accessModes": ["ReadWriteOnce"], **wanted},
        }
    }
