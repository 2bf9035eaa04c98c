"""The claims of a job before its pods are created: bound, to be bound on a node, or unusable.

kube-scheduler binds claims of storage classes with volumeBindingMode WaitForFirstConsumer. It never
sees pods that are created bound (docs/decisions/0008). For provisioned volumes it only writes the
annotation `volume.kubernetes.io/selected-node` to the claim, for which the volume controller waits.
This module decides that write. Existing volumes (class without provisioner) are bound by
kube-scheduler itself. Doing that here would require the right to change every PersistentVolume of
the cluster. https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode
kubernetes/kubernetes#89953

Claims that are made for each pod exist only after the pod. Their node is written in the pod
(`manifests.volumes`), and only their storage class is checked before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline_api.podprofile import PodProfile

NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """A PersistentVolumeClaim that a job names."""

    name: str
    storage_class: str = ""
    bound: bool = False
    lost: bool = False
    """True if its volume is gone."""
    selected_node: str = ""
    """Node for which its volume is being provisioned."""
    deleting: bool = False
    """True if it is being deleted. The kubelet starts no pod that uses it."""
    for_one_pod: bool = False
    """True if its only access mode is ReadWriteOncePod."""
    for_one_node: bool = False
    """True if its only access mode is ReadWriteOnce, and a node attaches its volume."""
    is_block: bool = False
    """True if its volume has no file system, so that no container can mount it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClassFacts:
    """The StorageClass of a claim."""

    waits_for_consumer: bool = False
    provisioner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReady:
    """The claim needs no action: it is bound, or another component binds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectNode:
    """The claim's volume must be provisioned where this node can use it."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUnusable:
    """No pod can use this claim, so none is created and no GPU is held."""

    message: str
    remedy: str


ClaimStep = ClaimReady | SelectNode | ClaimUnusable


def claim_names(job: Job) -> tuple[str, ...]:
    """Return the claims that the job names, each once."""
    spec, names = job.spec, list[str]()
    if spec.template is not None:
        claims = (volume.persistent_volume_claim for volume in spec.template.volumes or ())
        names += [claim.claim_name for claim in claims if claim is not None]
    else:
        if spec.checkpoint is not None and spec.checkpoint.claim_name is not None:
            names.append(spec.checkpoint.claim_name)
        if spec.trainer is not None and spec.trainer.data is not None:
            names.append(spec.trainer.data.claim_name)
    return tuple(dict.fromkeys(names))


def profile_claims(profile: PodProfile | None) -> tuple[str, ...]:
    """Return the claims that a pool's profile mounts in each pod, each once."""
    volumes = (profile.volumes if profile is not None else None) or ()
    claims = (volume.persistent_volume_claim for volume in volumes)
    return tuple(dict.fromkeys(claim.claim_name for claim in claims if claim is not None))


def pod_claim_classes(job: Job, *, default: str) -> tuple[tuple[str, str], ...]:
    """Return volume and storage class of volumes whose claims are made for each pod.

    Args:
        job: the job.
        default: the cluster's default class, or '' if it is not known. Then volumes without a
            named class are left out.
    """
    # The bundled trainer has no volumes with a claim for each pod.
    template = job.spec.template
    volumes = (template.volumes if template is not None else None) or ()
    named = (
        (volume.name, volume.ephemeral.volume_claim_template.spec.storage_class_name or default)
        for volume in volumes
        if volume.ephemeral is not None
    )
    return tuple((volume, storage) for volume, storage in named if storage)


def inline_drivers(job: Job) -> tuple[str, ...]:
    """Return the CSI drivers of the job's inline volumes, each once."""
    template = job.spec.template
    volumes = (template.volumes if template is not None else None) or ()
    return tuple(dict.fromkeys(each.csi.driver for each in volumes if each.csi is not None))


def inline_trouble(driver: str, *, exists: bool, serves_pods: bool) -> ClaimUnusable | None:
    """Return why no pod would get its inline volumes of a CSI driver, or None.

    A kubelet mounts them only if the CSIDriver exists and allows `Ephemeral`.
    """
    if exists and serves_pods:
        return None
    lack = "has no Ephemeral in volumeLifecycleModes" if exists else "not found"
    return ClaimUnusable(
        message=f'csidriver "{driver}" {lack}',
        remedy="name a CSI driver that makes inline volumes, or use a claim",
    )


def pod_claim_trouble(
    volume: str, storage_class: str, storage: StorageClassFacts | None
) -> ClaimUnusable | None:
    """Return why no pod would get its claim bound, or None.

    Args:
        volume: volume of the template.
        storage_class: name of its storage class.
        storage: facts of the storage class, or None if it does not exist.
    """
    remedy = f"name a StorageClass with a provisioner in volume {volume} of the template"
    if storage is None:
        return ClaimUnusable(message=f'storageclass "{storage_class}" not found', remedy=remedy)
    if storage.waits_for_consumer and storage.provisioner == NO_PROVISIONER:
        return ClaimUnusable(
            message=f"no claim of volume {volume} would be bound, because storage class"
            f" {storage_class} (WaitForFirstConsumer, no provisioner) leaves binding to"
            " kube-scheduler, which does not place these pods",
            remedy=remedy,
        )
    return None


def missing_claim(name: str) -> ClaimUnusable:
    """Return the error about a claim that does not exist."""
    return ClaimUnusable(
        message=f'persistentvolumeclaim "{name}" not found',
        remedy=f"create the PersistentVolumeClaim {name}, or correct its name in the job",
    )


def claim_trouble(
    claim: ClaimFacts, storage: StorageClassFacts | None, *, pods: int, nodes: int
) -> ClaimUnusable | None:
    """Return why pods cannot use a claim, or None.

    Starts and evictions have this one reading: no job is evicted for a start that it refuses.

    Args:
        claim: the claim.
        storage: its storage class, or None if it has none or it is not known.
        pods: number of the job's pods.
        nodes: number of their nodes.
    """
    # The volume is lost: pods would hang in ContainerCreating with their GPUs.
    if claim.lost:
        return ClaimUnusable(
            message=f'persistentvolumeclaim "{claim.name}" has lost its volume',
            remedy=f"restore the volume, or create the PersistentVolumeClaim {claim.name} again",
        )
    if claim.deleting:
        return ClaimUnusable(
            message=f'persistentvolumeclaim "{claim.name}" is being deleted',
            remedy=f"create the PersistentVolumeClaim {claim.name} again once it is gone, or name"
            " another one",
        )
    if claim.is_block:
        return ClaimUnusable(
            message=f'persistentvolumeclaim "{claim.name}" has the volume mode Block, but the pods'
            " mount it as a folder",
            remedy="name a claim with the volume mode Filesystem",
        )
    if claim.for_one_pod and pods > 1:
        return ClaimUnusable(
            message=f'persistentvolumeclaim "{claim.name}" has the access mode ReadWriteOncePod,'
            f" but {pods} pods of the job use it",
            remedy="name a claim with ReadWriteMany, or use a job of one pod",
        )
    if claim.for_one_node and nodes > 1:
        return ClaimUnusable(
            message=f'persistentvolumeclaim "{claim.name}" has the access mode ReadWriteOnce, but'
            f" pods of the job on {nodes} nodes use it",
            remedy="name a claim with ReadWriteMany, or use a job of one pod",
        )
    # Nobody would choose a node for an existing volume: kube-scheduler never sees the pods.
    waits = _waits_for_node(claim, storage)
    if waits and storage is not None and storage.provisioner == NO_PROVISIONER:
        return ClaimUnusable(
            message=f'persistentvolumeclaim "{claim.name}" is not bound, and its storage class'
            f" {claim.storage_class} (WaitForFirstConsumer, no provisioner) leaves"
            " binding to kube-scheduler, which does not place these pods",
            remedy=f"name the volume in spec.volumeName of {claim.name}",
        )
    return None


def claim_step(job: Job, claim: ClaimFacts, storage: StorageClassFacts | None) -> ClaimStep:
    """Return the action for a claim before the job's pods are created.

    A gang shares its claims. The volume is provisioned for the node of its lowest member, and the
    other nodes must be able to reach it.

    Args:
        job: the job. It has an assignment.
        claim: the claim.
        storage: its storage class, or None if it has none.
    """
    members = members_of(job.status)
    nodes = len({member.node for member in members})
    trouble = claim_trouble(claim, storage, pods=len(members), nodes=nodes)
    if trouble is not None:
        return trouble
    # The volume controller binds other claims without a node.
    waits = _waits_for_node(claim, storage)
    return SelectNode(node=members[0].node) if waits else ClaimReady()


def _waits_for_node(claim: ClaimFacts, storage: StorageClassFacts | None) -> bool:
    """Return whether the claim is bound only once a node is chosen for it."""
    unbound = not (claim.bound or claim.selected_node)
    return unbound and storage is not None and storage.waits_for_consumer
