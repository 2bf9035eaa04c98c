"""Saving: every rank writes its own part, rank 0 commits once all parts are reported.

Collective over all ranks. Nothing is visible under the step's name before the single rename in
`CheckpointFolder.commit`; a rank that cannot write says so in its report, so the others fail with
its reason instead of waiting for it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

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
from drumline_trainer.checkpoint.shard_file import dtype_name, write_shard_file
from drumline_trainer.parallelism.collectives import broadcast_bytes, gather_bytes
from drumline_trainer.parallelism.shards import Box
from drumline_trainer.parallelism.slices import Slice

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A committed checkpoint."""

    step: int
    digest: str
    """Of its manifest."""
    size_bytes: int
    seconds: float
    """How long training stood still for it."""


def save(
    *,
    folder: CheckpointFolder,
    step: int,
    slices: Sequence[Slice],
    trainer: Mapping[str, Any],
    device: torch.device,
) -> Saved:
    """Write and commit one checkpoint.

    Args:
        folder: claimed by rank 0 of this membership.
        step: finished optimizer steps; names the checkpoint.
        slices: what this rank holds; those of all ranks must make up whole tensors.
        trainer: JSON values of the trainer's own state, the same on every rank.
        device: where small messages travel.

    Raises:
        SaveError: a rank could not write; nothing was committed.
        StaleMembershipError: another one owns the folder by now; nothing was committed.
    """
    started = time.monotonic()
    reports = gather_bytes(_write_part(folder, step=step, slices=slices), device=device)
    verdict = b""
    if dist.get_rank() == 0:
        verdict = _commit(folder, step=step, trainer=trainer, reports=reports)
    outcome = json.loads(broadcast_bytes(verdict, device=device))
    match outcome:
        case {"digest": digest, "bytes": size_bytes}:
            seconds = time.monotonic() - started
            return Saved(step=step, digest=digest, size_bytes=size_bytes, seconds=seconds)
        case {"stale": reason}:
            raise StaleMembershipError(reason)
        case _:
            raise SaveError(f"checkpoint of step {step}: {outcome['error']}")


def _write_part(folder: CheckpointFolder, *, step: int, slices: Sequence[Slice]) -> bytes:
    """Write this rank's file; the report says what is in it, or why there is none."""
    rank = dist.get_rank()
    name = f"rank-{rank:05d}-of-{dist.get_world_size():05d}.safetensors"
    parts = {one.name: one for one in (each.own_part() for each in slices) if one.box.elements}
    target = folder.unfinished_folder(step)
    try:
        target.mkdir(exist_ok=True)
        record = write_shard_file(
            target / name, {key: one.tensor.detach() for key, one in parts.items()}
        )
    except OSError as error:
        return json.dumps({"error": f"rank {rank}: {error}"}).encode()
    return json.dumps(
        {
            "file": name,
            "bytes": record.size_bytes,
            "digest": record.digest,
            "parts": {
                key: (dtype_name(one.tensor), one.shape, one.box.offsets, one.box.shape)
                for key, one in parts.items()
            },
        }
    ).encode()


def _commit(
    folder: CheckpointFolder,
    *,
    step: int,
    trainer: Mapping[str, Any],
    reports: list[bytes],
) -> bytes:
    """Rank 0: write the manifest, rename. The verdict is for all ranks."""
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
    except StaleMembershipError as error:
        folder.discard(step)
        return json.dumps({"stale": str(error)}).encode()
    except (RuntimeError, OSError) as error:
        folder.discard(step)
        return json.dumps({"error": str(error)}).encode()
    return json.dumps({"digest": digest_of(body), "bytes": manifest.size_bytes}).encode()


def _manifest(
    folder: CheckpointFolder,
    *,
    step: int,
    trainer: Mapping[str, Any],
    parts: list[dict[str, Any]],
) -> Manifest:
    tensors: dict[str, TensorRecord] = {}
    for part in parts:
        for name, (dtype, shape, offsets, box_shape) in part["parts"].items():
            box = Box(offsets=tuple(offsets), shape=tuple(box_shape))
            known = tensors.get(name) or TensorRecord(dtype=dtype, shape=tuple(shape), pieces=())
            piece = Piece(file=part["file"], box=box)
            tensors[name] = replace(known, pieces=(*known.pieces, piece))
    return Manifest(
        step=step,
        world_size=dist.get_world_size(),
        generation=folder.membership[0],
        attempt=folder.membership[1],
        files={
            part["file"]: FileRecord(size_bytes=part["bytes"], digest=part["digest"])
            for part in parts
        },
        tensors=tensors,
        trainer=trainer,
    )
