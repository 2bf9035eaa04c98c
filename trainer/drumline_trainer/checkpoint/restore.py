"""Restoring: the newest checkpoint that verifies on every rank, into any number of ranks.

Collective over all ranks. Rank 0 reads a manifest, checks it against its digest and sends its
bytes to all, so everyone speaks of the same checkpoint. Each rank then verifies the files it needs
and its share of all; only when every rank has said yes does any of them use a byte, and reads just
the intervals of its own shards. One rank's "no" is everyone's: the checkpoint is passed over, named
in the log and left in place. If checkpoints exist and none verifies that is an error, never a
silent fresh start.

The step that was acknowledged to the operator is a floor: what it knows may be a minute old, so
newer checkpoints win and retention may have removed the acknowledged one, but nothing older is
ever used, and a checkpoint of that very step counts only with the acknowledged digest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    Piece,
    digest_line,
    digest_of,
)
from drumline_trainer.checkpoint.shard_file import dtype_name, read_bounded, verify_file
from drumline_trainer.config import ConfigError
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.byte_collectives import agree, broadcast_bytes
from drumline_trainer.sharding.slices import Slice

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredCheckpoint:
    """Where training goes on."""

    step: int
    digest: str
    """Of the manifest."""
    trainer: Mapping[str, Any]
    """The trainer's own state as it was saved."""


def restore(
    *,
    folder: CheckpointFolder,
    slices: Sequence[Slice],
    device: torch.device,
    acknowledged_step: int | None = None,
    acknowledged_digest: str = "",
) -> RestoredCheckpoint | None:
    """Fill the slices from the newest checkpoint that verifies and is not too old.

    Args:
        folder: claimed by rank 0.
        slices: what this rank holds; overwritten in place. After an error their contents are
            undefined.
        device: where small messages travel.
        acknowledged_step: no older checkpoint is used; None where none was acknowledged.
        acknowledged_digest: digest the manifest of that very step must have; empty for any.

    Returns:
        What was restored, or None where the folder is empty and nothing was acknowledged.

    Raises:
        CorruptCheckpointError: checkpoints exist, or one was acknowledged, and none may be used.
        ConfigError: the checkpoint holds another model.
    """
    found = _steps_in(folder, device=device)
    for step in found:
        if acknowledged_step is not None and step < acknowledged_step:
            break  # newest first: the rest is older still
        source = folder.step_folder(step)
        digest = acknowledged_digest if step == acknowledged_step else ""
        body, reason = _agree_on_manifest(source, digest=digest, device=device)
        if not reason:
            manifest = Manifest.parse(body)
            _refuse_other_model(manifest, slices, device=device)
            plan = _reading_plan(manifest, slices)
            reason = agree(_verify(source, manifest, plan), device=device) or agree(
                _read(source, plan), device=device
            )
            if not reason:
                return RestoredCheckpoint(
                    step=manifest.step, digest=digest_of(body), trainer=manifest.trainer
                )
        if dist.get_rank() == 0:
            logger.warning("checkpoint %s does not verify: %s", source.name, reason)
    listing = ", ".join(f"step {step}" for step in found) or "none"
    if acknowledged_step is not None:
        raise CorruptCheckpointError(
            f"{folder.path} holds no intact checkpoint of the acknowledged step {acknowledged_step}"
            f" or a newer one, and an older one would silently lose it; found: {listing}"
        )
    if found:
        raise CorruptCheckpointError(
            f"none of the checkpoints in {folder.path} verifies: {listing}"
        )
    return None


def read_back(folder: CheckpointFolder, *, step: int, digest: str, device: torch.device) -> str:
    """Read a committed checkpoint whole, each rank its share. Why it cannot be used, or ""."""
    source = folder.step_folder(step)
    body, reason = _agree_on_manifest(source, digest=digest, device=device)
    return reason or agree(_verify(source, Manifest.parse(body), {}), device=device)


def _steps_in(folder: CheckpointFolder, *, device: torch.device) -> list[int]:
    """Rank 0's listing for all: shared storage may show ranks different ages of a folder."""
    listing = json.dumps(folder.steps()).encode() if dist.get_rank() == 0 else b""
    return json.loads(broadcast_bytes(listing, device=device))


def _agree_on_manifest(source: Path, *, digest: str, device: torch.device) -> tuple[bytes, str]:
    """Rank 0's verified manifest on every rank: (its bytes, "") or (b"", why not)."""
    message = b""
    if dist.get_rank() == 0:
        try:
            message = b"+" + read_manifest(source, digest=digest)
        except CorruptCheckpointError as error:
            message = b"-" + str(error).encode()
    message = broadcast_bytes(message, device=device)
    return (message[1:], "") if message[:1] == b"+" else (b"", message[1:].decode())


def read_manifest(source: Path, *, digest: str = "") -> bytes:
    """The manifest's bytes, verified; with a digest, that it is that one.

    Raises:
        CorruptCheckpointError: it is damaged, of another step, or another one.
    """
    body = read_bounded(source / MANIFEST_FILE, limit=MAX_MANIFEST_BYTES)
    if read_bounded(source / MANIFEST_DIGEST_FILE, limit=1024) != digest_line(body):
        raise CorruptCheckpointError(f"{MANIFEST_FILE}: digest differs from {MANIFEST_DIGEST_FILE}")
    if digest and digest_of(body) != digest:
        raise CorruptCheckpointError(
            f"{MANIFEST_FILE}: digest is not the one that was acknowledged ({digest[:12]}…)"
        )
    manifest = Manifest.parse(body)
    if source.name != f"step-{manifest.step:08d}":
        raise CorruptCheckpointError(f"{MANIFEST_FILE}: is of step {manifest.step}")
    return body


def _refuse_other_model(
    manifest: Manifest, slices: Sequence[Slice], *, device: torch.device
) -> None:
    """Every slice must be of a stored tensor, and of every stored tensor a rank must hold one."""
    names = sorted(manifest.tensors)
    held = torch.zeros(len(names), dtype=torch.uint8, device=device)
    place = {name: index for index, name in enumerate(names)}
    reason = ""
    for one in slices:
        stored = manifest.tensors.get(one.name)
        wanted = (dtype_name(one.tensor), one.shape)
        if stored is None or (stored.dtype, stored.shape) != wanted:
            there = "absent" if stored is None else (stored.dtype, stored.shape)
            reason = reason or f"{one.name} is {there} there and {wanted} here"
        else:
            held[place[one.name]] = 1
    reason = agree(reason, device=device)
    dist.all_reduce(held, op=dist.ReduceOp.MAX)
    missing = [name for name, is_held in zip(names, held.tolist(), strict=True) if not is_held]
    if not reason and missing:
        record = manifest.tensors[missing[0]]
        reason = f"{missing[0]} is {(record.dtype, record.shape)} there and absent here"
    if reason:
        raise ConfigError(
            f"model: the checkpoint of step {manifest.step} holds another model: {reason}"
        )


def _verify(source: Path, manifest: Manifest, plan: Mapping[str, Sequence[_Interval]]) -> str:
    """Check the files this rank needs and its share of all, so that none stays unchecked."""
    own_share = sorted(manifest.files)[dist.get_rank() :: dist.get_world_size()]
    try:
        for name in sorted({*plan, *own_share}):
            verify_file(source / name, manifest.files[name])
    except CorruptCheckpointError as error:
        return f"rank {dist.get_rank()}: {error}"
    return ""


def _read(source: Path, plan: Mapping[str, Sequence[_Interval]]) -> str:
    """Fill this rank's shards from files that are what the manifest says."""
    try:
        for name, reads in plan.items():
            _read_file(source / name, reads)
    except (CorruptCheckpointError, SafetensorError, OSError) as error:
        return f"rank {dist.get_rank()}: {error}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """Copy `common` from a stored piece into a local shard."""

    name: str
    piece: Piece
    common: Box
    target: Tensor
    target_box: Box


def _reading_plan(manifest: Manifest, slices: Sequence[Slice]) -> dict[str, list[_Interval]]:
    """What this rank reads, by file, so that each file is opened once."""
    plan: dict[str, list[_Interval]] = {}
    for one in slices:
        for piece in manifest.tensors[one.name].pieces:
            common = piece.box.intersection(one.box)
            if common is not None:
                read = _Interval(
                    name=one.name,
                    piece=piece,
                    common=common,
                    target=one.tensor.detach(),
                    target_box=one.box,
                )
                plan.setdefault(piece.file, []).append(read)
    return plan


def _read_file(path: Path, reads: Sequence[_Interval]) -> None:
    with safe_open(path, framework="pt", device="cpu") as file:
        for read in reads:
            stored = file.get_slice(read.name)
            if tuple(stored.get_shape()) != read.piece.box.shape:
                raise CorruptCheckpointError(f"{path.name}: {read.name} has another shape")
            values: Tensor = stored[read.common.slices_within(read.piece.box)]
            if values.dtype != read.target.dtype:
                raise CorruptCheckpointError(f"{path.name}: {read.name} has another type")
            read.target[read.common.slices_within(read.target_box)] = values.to(read.target.device)
