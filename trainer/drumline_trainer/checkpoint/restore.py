"""Restoring: the newest checkpoint that verifies on every rank, into any number of ranks.

Collective over all ranks, in phases for each checkpoint, newest first:

1. Rank 0 reads the manifest, verifies its digest and broadcasts its bytes.
2. All ranks compare the manifest with the model they hold.
3. Each file is read and verified by one rank, and all ranks fill their slices with the data
   (`shared_reading`).

A rank enters the next phase only after all have accepted the last one. If a rank rejects, the
checkpoint is skipped on all ranks, named in the log and left in place. Partly filled slices do no
harm, because an older checkpoint fills every slice again. If checkpoints exist and none verifies,
that is an error, never a silent start from scratch.

The acknowledged step, which the operator knows, is a lower bound. A newer checkpoint wins, and
retention may have removed the acknowledged checkpoint, but an older one is never used. A checkpoint
of that very step must have the acknowledged digest.

Example: two ranks wrote rows 0-3 and 4-7 of a tensor; four ranks restore two rows each. Rank 2
holds rows 4-5, so it needs half of the second file (`intervals`), and so does rank 3. One of them
reads it for both.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from drumline_contract.config import ConfigError
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.intervals import reading_plan
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    digest_line,
    digest_of,
)
from drumline_trainer.checkpoint.shard_file import verify_chunks
from drumline_trainer.checkpoint.shared_reading import fill_slices
from drumline_trainer.checkpoint.storage import CheckpointStorage, StepFiles
from drumline_trainer.sharding.byte_collectives import (
    Accepted,
    Rejected,
    Vote,
    agree,
    broadcast_bytes,
)
from drumline_trainer.sharding.page_cache import page_cache
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.tensor_files.layout import dtype_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredCheckpoint:
    """The checkpoint from which training continues."""

    step: int
    digest: str
    """Digest of the manifest."""
    trainer: Mapping[str, Any]
    """The trainer's own state as it was saved."""


def restore(
    *,
    storage: CheckpointStorage,
    slices: Sequence[TensorSlice],
    device: torch.device,
    acknowledged_step: int | None = None,
    acknowledged_digest: str = "",
    check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    progress: Callable[[], None] = lambda: None,
) -> RestoredCheckpoint | None:
    """Fill the slices from the newest checkpoint that verifies and is not too old.

    Args:
        storage: claimed by rank 0.
        slices: what this rank holds; overwritten in place. After an error their contents are
            undefined.
        device: device of the tensors in small messages.
        acknowledged_step: no older checkpoint is used; None where none was acknowledged.
        acknowledged_digest: digest the manifest of that very step must have; empty for any.
        check: called with the trainer's own state before any tensor is read, and decides alike on
            all ranks. CorruptCheckpointError has the next older checkpoint tried.
        progress: called between pieces of files: hundreds of gigabytes take minutes to read.

    Returns:
        The restored state. None: the storage is empty, and no checkpoint was acknowledged.

    Raises:
        CorruptCheckpointError: checkpoints exist, or one was acknowledged, and none may be used.
        ConfigError: none may be used, and one holds another model.
        Any other error of `check`.
    """
    reader = _SliceReader(
        storage=storage,
        slices=slices,
        cache=page_cache(of_folder=storage.is_cached_by_nodes, device=device),
        device=device,
        check=check,
        progress=progress,
    )
    # Rank 0 lists for all: shared file systems may show ranks different listings.
    steps = _committed_steps(storage, device=device)
    refusals: list[Rejected] = []
    # Newest first. All ranks agree on each step before the next one is tried.
    for step in steps:
        if acknowledged_step is not None and step < acknowledged_step:
            break  # newest first: the rest is older still
        digest = acknowledged_digest if step == acknowledged_step else ""
        match reader.restore_step(step, digest=digest):
            case RestoredCheckpoint() as restored:
                return restored
            case Rejected(reason) as refusal:
                refusals.append(refusal)
                if dist.get_rank() == 0:
                    logger.warning("checkpoint step-%08d does not verify: %s", step, reason)
    # Never start from scratch silently while saved work exists.
    if steps or acknowledged_step is not None:
        raise _none_usable(storage, steps, refusals, acknowledged_step=acknowledged_step)
    return None


@dataclass(frozen=True, slots=True)
class _OtherModel(Rejected):
    """The tensors are of another model than this run's, or some were lost: an older may do."""


def _none_usable(
    storage: CheckpointStorage,
    steps: Sequence[int],
    refusals: Sequence[Rejected],
    *,
    acknowledged_step: int | None,
) -> CorruptCheckpointError | ConfigError:
    # A wrong setting explains the refusal better than "does not verify".
    other = next((refusal for refusal in refusals if isinstance(refusal, _OtherModel)), None)
    if other is not None:
        return ConfigError(f"model: {other.reason}")
    listing = ", ".join(f"step {step}" for step in steps) or "none"
    if acknowledged_step is None:
        return CorruptCheckpointError(
            f"none of the checkpoints in {storage.where} verifies: {listing}"
        )
    return CorruptCheckpointError(
        f"{storage.where} holds no intact checkpoint of the acknowledged step"
        f" {acknowledged_step} or a newer one, and an older one would silently lose it; found:"
        f" {listing}"
    )


def read_back(
    storage: CheckpointStorage,
    *,
    step: int,
    digest: str,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> Vote:
    """Read and verify all files of a committed checkpoint, each rank its share. Collective.

    Args:
        storage: folder or bucket.
        step: step of the checkpoint.
        digest: SHA-256 of the manifest.
        device: device of the collective.
        progress: called between chunks.
    """
    match _receive_manifest(storage, step, digest=digest, device=device):
        case Rejected() as rejected:
            return rejected
        case files, body:
            vote = _verify_share(files, Manifest.parse(body), progress=progress)
            return agree(vote, device=device)


def read_manifest(files: StepFiles, *, step: int, digest: str = "") -> bytes:
    """Read and verify the manifest, also against `digest` if there is one.

    Args:
        files: files of the step.
        step: step of the checkpoint.
        digest: SHA-256 of the manifest. Empty: it is not compared.

    Raises:
        CorruptCheckpointError: the manifest is damaged, of another step or has another digest.
    """
    # The limit bounds the memory that a damaged or hostile file can take.
    body = files.read_small(MANIFEST_FILE, limit=MAX_MANIFEST_BYTES)
    if files.read_small(MANIFEST_DIGEST_FILE, limit=1024) != digest_line(body):
        raise CorruptCheckpointError(f"{MANIFEST_FILE}: digest differs from {MANIFEST_DIGEST_FILE}")
    # The manifest fits its own digest but is not the acknowledged one: it was replaced.
    if digest and digest_of(body) != digest:
        raise CorruptCheckpointError(
            f"{MANIFEST_FILE}: digest is not the one that was acknowledged ({digest[:12]}…)"
        )
    # A folder may have been renamed by hand.
    manifest = Manifest.parse(body)
    if manifest.step != step:
        raise CorruptCheckpointError(f"{MANIFEST_FILE}: is of step {manifest.step}")
    return body


def _committed_steps(storage: CheckpointStorage, *, device: torch.device) -> list[int]:
    """Return rank 0's listing to all ranks: shared storage may show them different ages of it."""
    listing = json.dumps(storage.steps()).encode() if dist.get_rank() == 0 else b""
    return json.loads(broadcast_bytes(listing, device=device))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SliceReader:
    """Fills this rank's slices; see `restore`."""

    storage: CheckpointStorage
    slices: Sequence[TensorSlice]
    cache: str | None
    device: torch.device
    check: Callable[[Mapping[str, Any]], None]
    progress: Callable[[], None]

    def restore_step(self, step: int, *, digest: str) -> RestoredCheckpoint | Rejected:
        """Do phases 1 to 3 for one checkpoint.

        Raises:
            ConfigError: `check` raises it.
        """
        # 1. Manifest, read by rank 0 for all ranks.
        received = _receive_manifest(self.storage, step, digest=digest, device=self.device)
        if isinstance(received, Rejected):
            return received
        files, body = received
        manifest = Manifest.parse(body)
        # 2. The trainer's own state, which every rank checks with the same result.
        try:
            self.check(manifest.trainer)
        except CorruptCheckpointError as error:
            return Rejected(str(error))
        # 3. Names, shapes and types. Collective: all ranks accept, or none goes further.
        fits = _compared(manifest, self.slices, device=self.device)
        if isinstance(fits, Rejected):
            return fits
        # 4. The files themselves.
        filled = fill_slices(
            files,
            manifest,
            reading_plan(manifest, self.slices),
            cache=self.cache,
            device=self.device,
            progress=self.progress,
        )
        if isinstance(filled, Rejected):
            return filled
        return RestoredCheckpoint(
            step=manifest.step, digest=digest_of(body), trainer=manifest.trainer
        )


def _receive_manifest(
    storage: CheckpointStorage, step: int, *, digest: str, device: torch.device
) -> tuple[StepFiles, bytes] | Rejected:
    """Return a step's files and its manifest's bytes on every rank, verified by rank 0.

    Collective.
    """
    message = b""
    # "+" or "-" and the content: one broadcast carries the verdict and the bytes.
    if dist.get_rank() == 0:
        try:
            files = storage.committed(step)
            body = read_manifest(files, step=step, digest=digest)
            message = b"+" + files.place.encode() + b"\n" + body
        except CorruptCheckpointError as error:
            message = b"-" + str(error).encode()
    message = broadcast_bytes(message, device=device)
    if message[:1] == b"-":
        return Rejected(message[1:].decode())
    place, _, body = message[1:].partition(b"\n")
    return storage.at(place.decode()), body


def _compared(
    manifest: Manifest, slices: Sequence[TensorSlice], *, device: torch.device
) -> Accepted | _OtherModel:
    """Compare held slices with stored tensors: each stored tensor needs a slice on some rank.

    Collective, with the same result on all ranks.
    """
    names = sorted(manifest.tensors)
    index = {name: number for number, name in enumerate(names)}
    held = torch.zeros(len(names), dtype=torch.uint8, device=device)
    vote: Vote = Accepted()
    for local in slices:
        stored = manifest.tensors.get(local.name)
        wanted = (dtype_name(local.tensor), local.shape)
        if stored is not None and (stored.dtype, stored.shape) == wanted:
            held[index[local.name]] = 1
        elif isinstance(vote, Accepted):
            there = "absent" if stored is None else (stored.dtype, stored.shape)
            vote = Rejected(f"{local.name} is {there} there and {wanted} here")
    outcome = agree(vote, device=device)
    dist.all_reduce(held, op=dist.ReduceOp.MAX)
    flags = held.cpu().numpy()
    missing = next((name for name, flag in zip(names, flags, strict=True) if not flag), None)
    if isinstance(outcome, Accepted) and missing is not None:
        record = manifest.tensors[missing]
        outcome = Rejected(f"{missing} is {(record.dtype, record.shape)} there and absent here")
    if isinstance(outcome, Rejected):
        return _OtherModel(
            f"the checkpoint of step {manifest.step} holds another model: {outcome.reason}"
        )
    return outcome


def _verify_share(files: StepFiles, manifest: Manifest, *, progress: Callable[[], None]) -> Vote:
    """Verify this rank's share of the files, every N-th one for N ranks."""
    try:
        for name in sorted(manifest.files)[dist.get_rank() :: dist.get_world_size()]:
            record = manifest.files[name]
            verify_chunks(files.chunks(name, record), record, name=name, check=progress)
    except CorruptCheckpointError as error:
        return Rejected(f"rank {dist.get_rank()}: {error}")
    return Accepted()
