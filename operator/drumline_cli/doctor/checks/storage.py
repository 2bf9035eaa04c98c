"""Claims that all pods of a gang can mount."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from drumline_cli.doctor.facts import ClaimFact, ClassFact, JobFact
from drumline_cli.doctor.results import CheckFailed, Passed, Result, Warned, some
from drumline_cli.formatting import many

MANY_WRITERS: Final = "ReadWriteMany"
SHARED_PROVISIONERS: Final = (
    "nfs",
    "efs.csi.aws.com",
    "fsx.csi.aws.com",
    "filestore.csi.storage.gke.io",
    "lustre.csi.storage.gke.io",
    "parallelstore.csi.storage.gke.io",
    "file.csi.azure.com",
    "azurelustre.csi.azure.com",
    "cephfs",
    "csi.weka.io",
    "csi.vastdata.com",
    "csi.juicefs.com",
    "spectrumscale.csi.ibm.com",
    "beegfs.csi.netapp.com",
    "csi.trident.netapp.io",
    "com.nutanix.csi",
    "lustre",
    "driver.longhorn.io",
)
"""Parts of the names of provisioners that make volumes for many writers; not a complete list."""


def shared_storage(
    claims: tuple[ClaimFact, ...],
    classes: tuple[ClassFact, ...],
    jobs: tuple[JobFact, ...],
) -> Iterator[Result]:
    """Check whether gangs can store checkpoints.

    Args:
        claims: PersistentVolumeClaims.
        classes: StorageClasses.
        jobs: TrainingJobs that are not over.
    """
    known = {(claim.namespace, claim.name): claim for claim in claims}
    wrong = False
    for job in jobs:
        if job.claim is None:
            continue
        claim = known.get((job.namespace, job.claim))
        where = f"trainingjob {job.namespace}/{job.name}"
        if claim is None:
            wrong = True
            yield CheckFailed(
                message=f"{where} names claim {job.claim}, which does not exist",
                fix=f"create a {MANY_WRITERS} claim {job.claim} in namespace {job.namespace}",
            )
        elif job.nodes > 1 and MANY_WRITERS not in claim.access_modes:
            wrong = True
            yield CheckFailed(
                message=f"{where} trains on {job.nodes} nodes, but its claim {job.claim} is"
                f" {some(claim.access_modes)} and can be mounted on only one node",
                fix=f"copy its data to a claim with accessModes: [{MANY_WRITERS}]",
            )
    bound = [
        f"{claim.namespace}/{claim.name}"
        for claim in claims
        if MANY_WRITERS in claim.access_modes and claim.phase == "Bound"
    ]
    able = [storage.name for storage in classes if _is_shared(storage.provisioner)]
    if bound:
        if not wrong:
            yield Passed(message=f"{many(len(bound), MANY_WRITERS + ' claim')} bound")
    elif able:
        yield Passed(message=f"StorageClass {some(able)} can create {MANY_WRITERS} claims")
    else:
        yield Warned(
            message=f"no {MANY_WRITERS} claim is bound, and no known StorageClass creates such"
            " claims: gangs of several nodes cannot save checkpoints",
            fix="install a driver for a shared file system (NFS, EFS, Filestore, Azure Files,"
            " Lustre, CephFS, ...) with a StorageClass, and create a claim",
        )


def _is_shared(provisioner: str) -> bool:
    return any(part in provisioner for part in SHARED_PROVISIONERS)
