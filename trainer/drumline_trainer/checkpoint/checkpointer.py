"""The checkpoints of one run: claim the storage, restore once, save and prune."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.checkpoint import takeover
from drumline_trainer.checkpoint.background_save import BackgroundSave
from drumline_trainer.checkpoint.bucket.storage import BucketStorage
from drumline_trainer.checkpoint.commit import (
    CommitOutcome,
    Committed,
    NotCommitted,
    StorageFailed,
    Superseded,
    commit,
    decode,
    encode,
)
from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    FolderInUseError,
    FolderTakenError,
    PeerSaveError,
    SaveError,
    StaleMembershipError,
    StorageError,
    is_storage_fault,
)
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.lease import LeaseKeeper
from drumline_trainer.checkpoint.ownership import Owner, run_name
from drumline_trainer.checkpoint.rank_writer import RankWriter, slices_to_write
from drumline_trainer.checkpoint.restore import RestoredCheckpoint, read_back, restore
from drumline_trainer.checkpoint.storage import CheckpointStorage, StepFiles
from drumline_trainer.sharding.byte_collectives import Vote, broadcast_bytes, gather_bytes
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.tensor_files.layout import as_bytes

_ALIGNMENT = 64


def _nothing() -> None:
    """Do nothing: the default of `progress`."""


class StagingBuffer:
    """A copy in host memory. It is allocated once, and every copy replaces the last one."""

    def __init__(self, slices: Sequence[TensorSlice]) -> None:
        """Allocate memory for these slices, whose tensors are copied by each `copy`."""
        self._sources = [local.tensor.detach() for local in slices]
        sizes = [source.numel() * source.element_size() for source in self._sources]
        # One buffer with aligned places, so that each can be viewed in its tensor's type.
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        self._gpu = next((source.device for source in self._sources if source.is_cuda), None)
        # only to pinned memory the GPU copies directly, without a buffer of the driver
        pinned = self._gpu is not None
        self._buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=pinned)
        self._stream = None if self._gpu is None else torch.cuda.Stream(self._gpu)
        self._targets = [
            self._buffer[start : start + size] for start, size in zip(starts, sizes, strict=False)
        ]
        self.slices = [
            replace(local, tensor=target.view(local.tensor.dtype).view(local.tensor.shape))
            for local, target in zip(slices, self._targets, strict=True)
        ]
        """Slices like the given ones, with the tensors of the copy."""

    def order(self) -> None:
        """Let the next `copy` see all that the calling thread has queued on the GPU."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._gpu))

    def copy(self, check: Callable[[], None] = _nothing) -> None:
        """Copy in any thread, beside what the GPU computes. The sources may change afterwards.

        Args:
            check: called between tensors; an exception that it raises ends the copy.
        """
        with torch.cuda.stream(self._stream):
            for source, target in zip(self._sources, self._targets, strict=True):
                check()
                target.copy_(as_bytes(source), non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()


def open_storage(placement: Placement, *, owner: Owner, claim: str = "") -> CheckpointStorage:
    """Open the storage without claiming it.

    Args:
        placement: has checkpoints.
        owner: the job and its membership.
        claim: unique id of this claim; empty for readers.

    Raises:
        CheckpointError: a bucket cannot be opened.
    """
    if placement.checkpoint_bucket is not None:
        return BucketStorage.open(placement.checkpoint_bucket, owner=owner, claim=claim)
    assert placement.checkpoint_folder is not None  # noqa: S101 - it has checkpoints
    return CheckpointFolder(
        path=placement.checkpoint_folder,
        owner=owner.name,
        membership=owner.membership,
        job=owner.job,
    )


_CLAIM_ERRORS = {
    kind.__name__: kind
    for kind in (
        CheckpointError,
        StaleMembershipError,
        FolderTakenError,
        FolderInUseError,
        CorruptCheckpointError,
        StorageError,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A committed checkpoint and its cost."""

    step: int
    digest: str
    """Digest of its manifest."""
    size_bytes: int
    seconds: float
    """Seconds for which training stopped for it."""
    write_seconds: float
    """Seconds for which this rank wrote, during training or not."""


@dataclass(slots=True, kw_only=True)
class _PendingSave:
    """A save that has begun."""

    step: int
    background: BackgroundSave
    seconds: float
    """Seconds for which training has stopped for it so far."""


@dataclass(slots=True, kw_only=True)
class Checkpointer:
    """The checkpoints of one rank.

    Collective but for `finish_copy`, `ready` and `cancel`: all ranks make the same calls in the
    same order.

    Training waits for a save (`save`), or it continues during the save: `begin` it, `finish_copy`
    before the next update, then `advance` when all ranks are `ready`, or until there is no
    `pending_step`. There is one save at a time.
    """

    storage: CheckpointStorage
    writer: RankWriter
    keep: int
    device: torch.device
    """Device of the tensors in small messages between ranks."""
    progress: Callable[[], None] = _nothing
    """Called on the calling thread while files are read or written, and while it waits for a thread
    that does so."""
    verified: list[int] = field(default_factory=list[int])
    """Steps this run restored (and so verified) or wrote (and so digested)."""
    _pending: _PendingSave | None = None
    _staging: StagingBuffer | None = None
    _lease: LeaseKeeper | None = None
    """Kept by rank 0."""

    @classmethod
    def open(
        cls,
        placement: Placement,
        *,
        keep: int,
        device: torch.device,
        continue_from: str = "",
        progress: Callable[[], None] = _nothing,
    ) -> Checkpointer | None:
        """Claim the storage of the job's checkpoints; None where it has none.

        Args:
            placement: placement of this rank.
            keep: number of verified checkpoints to keep.
            device: device of the tensors in small messages between ranks.
            continue_from: see `takeover.claim`.
            progress: see the field.

        Raises:
            StaleMembershipError: a newer membership of this job owns it.
            FolderInUseError, FolderTakenError: another job does.
            CorruptCheckpointError: its owner cannot be read, or a step was acknowledged and there
                is no storage to restore it from.
            StorageError: the storage fails; it may work later.
            CheckpointError: rank 0 cannot use the storage.
        """
        if not placement.has_checkpoints:
            # A job with saved work must not start from scratch because its folder is gone.
            if placement.acknowledged_step is not None:
                raise CorruptCheckpointError(
                    f"step {placement.acknowledged_step} was acknowledged, and there is no"
                    " checkpoint folder to restore it from"
                )
            return None
        storage = _claimed(placement, device=device, continue_from=continue_from, progress=progress)
        writer = RankWriter(rank=placement.rank, world_size=placement.world_size)
        lease = (
            LeaseKeeper(place=storage.lease, owner=storage.owner) if dist.get_rank() == 0 else None
        )
        if lease is not None:
            lease.begin()
        return cls(
            storage=storage,
            writer=writer,
            keep=keep,
            device=device,
            progress=progress,
            _lease=lease,
        )

    def leave(self, *, done: bool) -> None:
        """Renew the lease no more; `done`: remove it, as the run has ended."""
        if self._lease is not None:
            self._lease.release() if done else self._lease.stop()

    def restore(
        self,
        slices: Sequence[TensorSlice],
        *,
        placement: Placement,
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> RestoredCheckpoint | None:
        """See `checkpoint.restore.restore`.

        Args:
            slices: this rank's parts of all tensors.
            placement: rank and pod of this process.
            check: validates the trainer state of a checkpoint.
        """
        restored = restore(
            storage=self.storage,
            slices=slices,
            device=self.device,
            acknowledged_step=placement.acknowledged_step,
            acknowledged_digest=placement.acknowledged_digest,
            check=check,
            progress=self.progress,
        )
        # A checkpoint that was just read completely counts as verified.
        if restored is not None:
            self.verified.append(restored.step)
        return restored

    def save(
        self, *, step: int, slices: Sequence[TensorSlice], trainer: Mapping[str, Any]
    ) -> SavedCheckpoint:
        """Write and commit one checkpoint, then drop what is older than the ones to keep.

        Args:
            step: finished optimizer steps; names the checkpoint.
            slices: what this rank holds; those of all ranks must make up whole tensors.
            trainer: JSON values of the trainer's own state, the same on every rank.

        Raises:
            SaveError: a rank could not write; nothing was committed. PeerSaveError: another one.
                StorageError: because the storage fails.
            StaleMembershipError: another membership or job owns the storage; nothing was
                committed.
        """
        # 1. All ranks write their own files. A failure is reported, never raised before the
        # exchange:
        # a rank that left here would let the others hang in the collective.
        began = time.monotonic()
        files = self.storage.begin(step)
        report = self.writer.write(files, slices_to_write(slices), check=self.progress)
        # 2. All ranks exchange reports, and rank 0 commits.
        reports = gather_bytes(report, device=self.device)
        outcome = b""
        if dist.get_rank() == 0:
            outcome = encode(self._commit(step, files=files, trainer=trainer, reports=reports))
        # 3. All ranks learn the same outcome, so all raise the same kind of error.
        outcome = broadcast_bytes(outcome, device=self.device)
        seconds = time.monotonic() - began
        return self._saved(decode(outcome), step=step, seconds=seconds, write_seconds=seconds)

    def begin(
        self, *, step: int, slices: Sequence[TensorSlice], trainer: Mapping[str, Any]
    ) -> None:
        """Copy what `save` would write, and write it, both during training.

        Nothing may change the slices before `finish_copy` has returned.

        Args:
            step: number of finished steps.
            slices: this rank's parts of all tensors.
            trainer: JSON state of the trainer.
        """
        assert self._pending is None  # noqa: S101 - one at a time
        began = time.monotonic()
        # Made once: pinning memory is slow. Slices and their sizes stay the same in a membership.
        if self._staging is None:
            self._staging = StagingBuffer(slices_to_write(slices))
        staging = self._staging
        staging.order()
        files = self.storage.begin(step)
        save = BackgroundSave(
            copy=staging.copy,
            write=lambda check: self.writer.write(files, staging.slices, check=check),
            commit=lambda reports: encode(
                self._commit(step, files=files, trainer=trainer, reports=reports)
            ),
            device=self.device,
        )
        self._pending = _PendingSave(step=step, background=save, seconds=time.monotonic() - began)

    def finish_copy(self) -> None:
        """Wait until the pending save, if any, has copied its slices."""
        if self._pending is not None:
            began = time.monotonic()
            self._pending.background.finish_copy(progress=self.progress)
            self._pending.seconds += time.monotonic() - began

    @property
    def pending_step(self) -> int | None:
        """The step of the save that has begun and is not committed."""
        return None if self._pending is None else self._pending.step

    @property
    def ready(self) -> bool:
        """True if a save is pending and does not wait for this rank."""
        return self._pending is not None and self._pending.background.ready

    def advance(self) -> SavedCheckpoint | None:
        """Bring the save one stage further, waiting for ranks that are not ready.

        Returns:
            The checkpoint after the last stage, None before.

        Raises:
            SaveError, StaleMembershipError: as `save` does.
        """
        assert self._pending is not None  # noqa: S101 - it is ready
        pending, began = self._pending, time.monotonic()
        outcome = pending.background.advance(progress=self.progress)
        pending.seconds += time.monotonic() - began
        if outcome is None:
            return None
        self._pending = None
        return self._saved(
            decode(outcome),
            step=pending.step,
            seconds=pending.seconds,
            write_seconds=pending.background.seconds,
        )

    def cancel(self) -> None:
        """Forget the pending save, if any: this membership has ended."""
        if self._pending is not None:
            self._pending.background.cancel()
            self._pending = None

    def _commit(
        self, step: int, *, files: StepFiles, trainer: Mapping[str, Any], reports: list[bytes]
    ) -> CommitOutcome:
        """Commit a checkpoint on rank 0, in a thread if it is written beside training."""
        outcome = commit(self.storage, files=files, step=step, trainer=trainer, reports=reports)
        if isinstance(outcome, Committed):
            # Only after the commit: until then the older checkpoints are the newest ones.
            self.storage.prune(
                keep=self.keep,
                verified=self._verified_with(step),
                spared=trainer.get("kept_step"),
            )
        return outcome

    def _saved(
        self, outcome: CommitOutcome, *, step: int, seconds: float, write_seconds: float
    ) -> SavedCheckpoint:
        """Return the saved checkpoint of an outcome.

        Raises:
            SaveError: this rank could not write; PeerSaveError: another rank could not.
            StorageError: the storage is full or lost.
            StaleMembershipError: a later membership owns the storage.
        """
        match outcome:
            case NotCommitted(reason, ranks):
                # The failed rank ends its process. Its peers only lose the attempt.
                kind = SaveError if dist.get_rank() in ranks else PeerSaveError
                raise kind(f"checkpoint of step {step}: {reason}")
            case StorageFailed(reason):
                raise StorageError(f"checkpoint of step {step}: {reason}")
            case Superseded(reason, by_another_job):
                raise (FolderTakenError if by_another_job else StaleMembershipError)(reason)
            case Committed(digest, size_bytes):
                self.verified = self._verified_with(step)
                return SavedCheckpoint(
                    step=step,
                    digest=digest,
                    size_bytes=size_bytes,
                    seconds=seconds,
                    write_seconds=write_seconds,
                )

    def _verified_with(self, step: int) -> list[int]:
        # Older ones than those kept are pruned anyway.
        return [*(kept for kept in self.verified if kept != step), step][-self.keep :]

    def read_back(self, saved: SavedCheckpoint) -> Vote:
        """See `checkpoint.restore.read_back`."""
        return read_back(
            self.storage,
            step=saved.step,
            digest=saved.digest,
            device=self.device,
            progress=self.progress,
        )


def _claimed(
    placement: Placement,
    *,
    device: torch.device,
    continue_from: str,
    progress: Callable[[], None],
) -> CheckpointStorage:
    """Return the storage, claimed by rank 0. All ranks raise its error, if any. Collective."""
    message: dict[str, str] = {}
    # One rank claims, so that ranks of one job never compete for the lock.
    if dist.get_rank() == 0:
        name = placement.owner if placement.generation else run_name()
        message = _claim(
            placement,
            owner=name,
            claim=secrets.token_hex(6),
            continue_from=continue_from,
            progress=progress,
        )
    message = json.loads(broadcast_bytes(json.dumps(message).encode(), device=device))
    # Sent by name, not as a pickle, and raised by all ranks.
    if "error" in message:
        raise _CLAIM_ERRORS[message["kind"]](message["error"])
    return _opened(placement, owner=message["owner"], claim=message["claim"])


def _opened(placement: Placement, *, owner: str, claim: str) -> CheckpointStorage:
    return open_storage(placement, owner=_owner(placement, owner), claim=claim)


def _owner(placement: Placement, name: str) -> Owner:
    return Owner(name=name, membership=placement.membership, job=placement.job)


def _claim(
    placement: Placement,
    *,
    owner: str,
    claim: str,
    continue_from: str,
    progress: Callable[[], None],
) -> dict[str, str]:
    """Claim the storage on rank 0. Return the owner and the claim's id, or the error."""
    try:
        takeover.claim(
            _opened(placement, owner=owner, claim=claim),
            own=_owner(placement, owner),
            continue_from=continue_from,
            check=progress,
        )
    except CheckpointError as error:
        return {"kind": type(error).__name__, "error": str(error)}
    except OSError as error:
        kind = StorageError if is_storage_fault(error) else CheckpointError
        where = placement.checkpoint_bucket or f"checkpoint folder {placement.checkpoint_folder}"
        return {"kind": kind.__name__, "error": f"{where}: {_reason(error)}"}
    return {"owner": owner, "claim": claim}


def _reason(error: OSError) -> str:
    """Return the reason of an error, with its path."""
    if isinstance(error, FileExistsError):
        return "a file, or a link to a missing folder, has this name"
    return f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)
