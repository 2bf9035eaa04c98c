"""Volumes and mounts of pods: claims, scratch space, shared memory, the job's token.

The claim of a volume that is made for each pod waits, as any claim does, until its node is written
in it, where its storage class says WaitForFirstConsumer. Kubernetes makes that claim once the pod
is there, and takes over the annotations of its template
(https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#generic-ephemeral-volumes): so the
node is in the template, and nobody has to look for the claim.
"""

from __future__ import annotations

from typing import Any, Final

from drumline.api.volumes import EphemeralVolume, Volume
from drumline.lifecycle.manifests.children import token_secret_name
from drumline.lifecycle.model.job import Job
from drumline_trainer.contract import (
    TOKEN_FILE,
)

Json = dict[str, Any]

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: its volume is to be provisioned where this node can use it."""


def scratch_volume(name: str) -> Json:
    """An empty folder on the node's disk that lives as long as the pod."""
    return {"name": name, "emptyDir": {}}


def shared_memory_volume() -> Json:
    """NCCL and data workers need more than a runtime's default 64 MiB; counts as pod memory."""
    return {"name": "drumline-shm", "emptyDir": {"medium": "Memory"}}


def claim_volume(name: str, claim: str, *, read_only: bool) -> Json:
    """A PersistentVolumeClaim of the job's namespace."""
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}


def template_volume(volume: Volume, *, node: str) -> Json:
    """A volume of spec.template as a pod's volume.

    Args:
        volume: what the template says.
        node: of the pod.
    """
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
    elif volume.ephemeral is not None:
        manifest["ephemeral"] = _claim_of_pod(volume.ephemeral, node=node)
    else:
        scratch = volume.empty_dir
        manifest["emptyDir"] = (
            scratch.model_dump(by_alias=True, exclude_none=True) if scratch else {}
        )
    return manifest


def _claim_of_pod(volume: EphemeralVolume, *, node: str) -> Json:
    wanted = volume.volume_claim_template.spec.model_dump(by_alias=True, exclude_none=True)
    return {
        "volumeClaimTemplate": {
            "metadata": {"annotations": {SELECTED_NODE: node}},
            "spec": {"accessModes": ["ReadWriteOnce"], **wanted},
        }
    }


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
