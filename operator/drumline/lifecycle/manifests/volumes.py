"""Volumes and mounts of pods: claims, scratch space, shared memory, the job's token."""

from __future__ import annotations

from typing import Any

from drumline.api.podtemplate import Volume
from drumline.lifecycle.manifests.children import token_secret_name
from drumline.lifecycle.model.job import Job
from drumline_trainer.contract import (
    TOKEN_FILE,
)

Json = dict[str, Any]


def scratch_volume(name: str) -> Json:
    """An empty folder on the node's disk that lives as long as the pod."""
    return {"name": name, "emptyDir": {}}


def shared_memory_volume() -> Json:
    """NCCL and data workers need more than a runtime's default 64 MiB; counts as pod memory."""
    return {"name": "drumline-shm", "emptyDir": {"medium": "Memory"}}


def claim_volume(name: str, claim: str, *, read_only: bool) -> Json:
    """A PersistentVolumeClaim of the job's namespace."""
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}


def template_volume(volume: Volume) -> Json:
    """A volume of spec.template as a pod's volume."""
    manifest: Json = {"name": volume.name}
    if volume.persistent_volume_claim is not None:
        claim = volume.persistent_volume_claim
        return claim_volume(volume.name, claim.claim_name, read_only=claim.read_only)
    if volume.config_map is not None:
        manifest["configMap"] = {"name": volume.config_map.name}
    elif volume.secret is not None:
        manifest["secret"] = {"secretName": volume.secret.name}
    elif volume.csi is not None:
        manifest["csi"] = volume.csi.model_dump(by_alias=True, exclude_none=True)
    else:
        scratch = volume.empty_dir
        manifest["emptyDir"] = (
            scratch.model_dump(by_alias=True, exclude_none=True) if scratch else {}
        )
    return manifest


def token_volume(job: Job) -> Json:
    """The Secret with the job's token; see `children.token_secret`."""
    return {
        "name": "drumline-token",
        "secret": {"secretName": token_secret_name(job), "defaultMode": 0o440},
    }


def token_mount() -> Json:
    """Where agents read the token."""
    return {
        "name": "drumline-token",
        "mountPath": TOKEN_FILE.rsplit("/", 1)[0],
        "readOnly": True,
    }
