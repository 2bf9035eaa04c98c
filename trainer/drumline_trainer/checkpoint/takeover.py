"""Decide whether a run may take a place for checkpoints from its last owner, on rank 0.

    owner          still trains    has ended, steps lie there                 no step
    same job       claim: `ownership` orders the memberships
    other job      refused         claim if it may continue, else refused     claim

A job may continue the checkpoints of a job with its own namespace and name, and of the job that
`checkpoint.continueFrom` names. It waits for the end of such a job, whose pods may still save. Runs
without an operator have no names, so each may continue the checkpoints of one that has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from drumline_trainer.checkpoint.errors import FolderInUseError
from drumline_trainer.checkpoint.lease import is_alive
from drumline_trainer.checkpoint.ownership import Owner
from drumline_trainer.checkpoint.storage import CheckpointStorage

PATIENCE_SECONDS: Final = 900.0
"""Longest wait for a job that this one continues: its pods save and end in their grace period."""
_POLL_SECONDS: Final = 1.0


def claim(
    storage: CheckpointStorage, *, own: Owner, continue_from: str, check: Callable[[], None]
) -> None:
    """Claim the storage for `own`.

    Args:
        storage: storage as `own` sees it.
        own: this membership.
        continue_from: the job whose checkpoints this one may continue, with or without its
            namespace; empty: none.
        check: called during a wait, and may raise to end it.

    Raises:
        FolderInUseError: another job trains there, or its checkpoints lie there.
        FolderTakenError: another job was quicker.
        CheckpointError, OSError: as `CheckpointStorage.claim` does.
    """
    known = storage.known_owner()
    if known is None or known.name == own.name:
        storage.claim(seen=own)
        return
    allowed = may_continue(known, own=own, continue_from=continue_from)
    patience = PATIENCE_SECONDS if allowed and known.job else 0.0
    _await_end(storage, known, patience=patience, check=check)
    if not allowed and storage.steps():
        name = known.job.rpartition("/")[2] or "its name"
        raise FolderInUseError(
            f"CheckpointFolderInUse: held by {known.label}. {storage.where} has checkpoints of"
            f" {known.label}, which has ended. Set checkpoint.continueFrom to {name} to continue"
            " them, or set another checkpoint.path"
        )
    storage.claim(seen=known)


def may_continue(known: Owner, *, own: Owner, continue_from: str) -> bool:
    """Return whether `own` may continue the checkpoints of `known`, another job.

    Args:
        known: owner in the storage.
        own: this run.
        continue_from: the job that `continueFrom` names.
    """
    if known.job:
        namespace = own.job.partition("/")[0]
        return known.job in (own.job, continue_from, f"{namespace}/{continue_from}")
    return bool(continue_from) or (known.is_run and own.is_run)


def _await_end(
    storage: CheckpointStorage, known: Owner, *, patience: float, check: Callable[[], None]
) -> None:
    """Return once the owner has ended. Raises FolderInUseError after `patience` seconds."""

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        check()

    until = time.monotonic() + patience
    while is_alive(storage.lease, sleep=sleep):
        if time.monotonic() >= until:
            raise FolderInUseError(
                f"CheckpointFolderInUse: held by {known.label}. It trains into {storage.where} now."
                " Wait for its end, or set another checkpoint.path"
            )
        sleep(_POLL_SECONDS)
