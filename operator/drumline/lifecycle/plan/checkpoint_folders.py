"""Decide which job may use a checkpoint folder that several jobs name: one at a time.

    first (ran, now suspended)   second (never ran)      second waits for first
    first (waits, older)         second (waits, newer)   second waits for first

A job holds its folder from its first start to its end, also while it is suspended or preempted. Of
jobs that never started, the oldest that can start holds the folder.
"""

from __future__ import annotations

from posixpath import normpath
from typing import NamedTuple

from drumline.lifecycle.manifests.trainer_config import checkpoint_path
from drumline.lifecycle.model.chains import unmet_of
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal
from drumline.lifecycle.plan.acceptance import is_ours


class FolderTurn(NamedTuple):
    """The place of a job among the users of its folder. The lowest one may use the folder."""

    is_new: bool
    """False if the job has begun, so that it keeps the folder."""
    created_at: float
    key: str


def folder_of(job: Job) -> str | None:
    """Return the name of the job's checkpoint folder, None for a job that uses none.

    A bucket may be the same for all namespaces. Nevertheless a job waits for none of another
    namespace, because users there could keep it waiting for ever. The lease in the folder keeps
    such jobs apart.
    """
    checkpoint = job.spec.checkpoint
    if checkpoint is None or job.finished or not is_ours(job):
        return None
    # A finalizer may hold a deleted job for days. It has no pods once its places are given back.
    if job.deleting and job.status.assignment is None:
        return None
    path = checkpoint_path(checkpoint.path, name=job.name, uid=job.uid)
    top = checkpoint.bucket or f"claim:{checkpoint.claim_name}"
    return f"{job.namespace}/{top.rstrip('/')}/{normpath(path)}"


def turn_of(job: Job) -> FolderTurn | None:
    """Return the turn of a user of a folder. None for a job that keeps no other one waiting."""
    began = job.status.assignment is not None or job.status.generation is not None
    may_start = not (job.spec.suspend or job.deleting or isinstance(job.verdict, Refusal)) and not (
        unmet_of(job)
    )
    return FolderTurn(not began, job.created_at, job.key) if began or may_start else None


def waits_for(job: Job, first: FolderTurn | None) -> bool:
    """Return whether a job has to wait for the first user of its folder."""
    own = turn_of(job)
    if first is None or first.key == job.key or (own is not None and not own.is_new):
        return False
    return not first.is_new or (first.created_at, first.key) < (job.created_at, job.key)
