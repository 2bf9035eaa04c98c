"""Saving: every rank writes its own part, rank 0 commits once all parts are reported.

Nothing is visible under the step's name before the single rename in `CheckpointFolder.commit`; a
rank that cannot write says so in its report, so the others fail with its reason instead of waiting
for it. Messages between ranks are the caller's business: `write` of `RankWriter` reports, `commit`
makes a verdict of all reports, and `saved` says on every rank what that means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drumline_trainer.checkpoint.errors import SaveError, StaleMembershipError
from drumline_trainer.checkpoint.folder import CheckpointFolder, sync_folder, write_durably
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    FileRecord,
    Manifest,
    Piece,
    TensorRecord,
    digest_line,
    digest_of,
)
from drumline_trainer.sharding.boxes import Box


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A committed checkpoint."""

    step: int
    digest: str
    """Of its manifest."""
    size_bytes: int
    seconds: float
    """How long training stood still for it."""
    write_seconds: float
    """How long this rank wrote, beside training or not."""


def saved(verdict: bytes, *, step: int, seconds: float, write_seconds: float) -> SavedCheckpoint:
    """What the verdict of `commit` means.

    Raises:
        SaveError: a rank could not write; nothing was committed.
        StaleMembershipError: another one owns the folder by now; nothing was committed.
    """
    outcome = json.loads(verdict)
    match outcome:
        case {"digest": digest, "bytes": size_bytes}:
            return SavedCheckpoint(
                step=step,
                digest=digest,
                size_bytes=size_bytes,
                seconds=seconds,
                write_seconds=write_seconds,
            )
        case {"stale": reason}:
            raise StaleMembershipError(reason)
        case _:
            raise SaveError(f"checkpoint of step {step}: {outcome['error']}")


def commit(
    folder: CheckpointFolder,
    *,
    step: int,
    trainer: Mapping[str, Any],
    reports: Sequence[bytes],
) -> bytes:
    """Rank 0: write the manifest, rename. The verdict is for all ranks.

    Args:
        folder: claimed by this membership.
        step: finished optimizer steps; names the checkpoint.
        trainer: JSON values of the trainer's own state.
        reports: of all ranks.
    """
    parts: list[dict[str, Any]] = [json.loads(report) for report in reports]
    errors = [part["error"] for part in parts if "error" in part]
    try:
        if errors:
            raise SaveError("; ".join(errors))
        manifest = _manifest(folder, step=step, trainer=trainer, parts=parts)
        body = manifest.encode()
        Manifest.parse(body)  # what could not be restored must not be committed
        target = folder.unfinished_folder(step)
        write_durably(target / MANIFEST_FILE, body)
        write_durably(target / MANIFEST_DIGEST_FILE, digest_line(body))
        sync_folder(target)
        folder.commit(step)
    except (RuntimeError, OSError) as error:
        folder.discard(step)
        # who takes the folder over removes what we write: then that is the reason
        stale = folder.replaced_by()
        return json.dumps({"stale": stale} if stale else {"error": str(error)}).encode()
    return json.dumps({"digest": digest_of(body), "bytes": manifest.size_bytes}).encode()


def _manifest(
    folder: CheckpointFolder,
    *,
    step: int,
    trainer: Mapping[str, Any],
    parts: list[dict[str, Any]],
) -> Manifest:
    files: dict[str, FileRecord] = {}
    tensors: dict[str, TensorRecord] = {}
    for file in (file for part in parts for file in part["files"]):
        files[file["name"]] = FileRecord(size_bytes=file["bytes"], digest=file["digest"])
        for name, (dtype, shape, offsets, box_shape) in file["parts"].items():
            box = Box(offsets=tuple(offsets), shape=tuple(box_shape))
            known = tensors.get(name) or TensorRecord(dtype=dtype, shape=tuple(shape), pieces=())
            piece = Piece(file=file["name"], box=box)
            tensors[name] = replace(known, pieces=(*known.pieces, piece))
    return Manifest(
        step=step,
        world_size=len(parts),
        generation=folder.membership[0],
        attempt=folder.membership[1],
        files=files,
        tensors=tensors,
        trainer=trainer,
    )
