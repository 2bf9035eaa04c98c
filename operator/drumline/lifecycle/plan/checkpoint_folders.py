"""Decide which job may use a checkpoint folder that several jobs name: one at a time.

    first (ran, now suspended)   second (never ran)      second waits for first
    first (waits, older)         second (waits, newer)   second waits for first

A job holds its folder from its first start to its end, also while it is suspended or preempted. Of
jobs that never started, the oldest that can start holds the folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import normpath

from drumline.lifecycle.manifests.trainer_config import checkpoint_path
from drumline.lifecycle.model.chains import unmet_of
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal
from drumline.lifecycle.plan.acceptance import is_ours


def folder_of(job: Job) -> str | None:
    """Return the name of the job's checkpoint folder, None for a job that uses none.

    Claims belong to a namespace. A bucket is the same for all namespaces.
    """
    checkpoint = job.spec.checkpoint
    if checkpoint is None or job.finished or not is_ours(job):
        return None
    # A finalizer may hold a deleted job for days. It has no pods once its places are given back.
    if job.deleting and job.status.assignment is None:
        return None
    path = checkpoint_path(checkpoint.path, name=job.name, uid=job.uid)
    top = checkpoint.bucket or f"claim:{job.namespace}/{checkpoint.claim_name}"
    return f"{top.rstrip('/')}/{normpath(path)}"


def holder_for(job: Job, *, users: Iterable[Job]) -> Job | None:
    """Return the job that keeps this one from its folder, None if it may have the folder.

    Args:
        job: uses a folder.
        users: the other jobs that use the same folder.
    """
    if _began(job):
        return None
    rivals = sorted(users, key=_age)
    holder = next((rival for rival in rivals if _began(rival)), None)
    if holder is not None:
        return holder
    return next((rival for rival in rivals if _may_start(rival) and _age(rival) < _age(job)), None)


def _began(job: Job) -> bool:
    return job.status.assignment is not None or job.status.generation is not None


def _may_start(job: Job) -> bool:
    return not (job.spec.suspend or job.deleting or isinstance(job.verdict, Refusal)) and not (
        unmet_of(job)
    )


def _age(job: Job) -> tuple[float, str]:
    return job.created_at, job.key
