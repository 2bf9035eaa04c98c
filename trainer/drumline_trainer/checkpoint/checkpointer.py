"""The checkpoints of one run: claim the folder, restore once, save and prune as it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from drumline_trainer.checkpoint.background_save import BackgroundSave
from drumline_trainer.checkpoint.commit import SavedCheckpoint, commit, saved
from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    StaleMembershipError,
)
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.rank_writer import RankWriter, slices_to_write
from drumline_trainer.checkpoint.restore import RestoredCheckpoint, read_back, restore
from drumline_trainer.checkpoint.staging import StagingBuffer
from drumline_trainer.rank_protocol.placement import Placement
from drumline_trainer.sharding.byte_collectives import broadcast_bytes, gather_bytes
from drumline_trainer.sharding.slices import Slice


@dataclass(slots=True, kw_only=True)
class _PendingSave:
    """A save that has begun."""

    step: int
    background: BackgroundSave
    seconds: float
    """That training has stood still for it so far."""


@dataclass(slots=True, kw_only=True)
class Checkpointer:
    """Collective but for `ready` and `cancel`: all ranks make the same calls in the same order.

    A save is either waited for (`save`), or it goes on behind training: `begin` it, then `go_on`
    when all ranks are `ready`, or until nothing is `under_way` any more. One at a time.
    """

    folder: CheckpointFolder
    writer: RankWriter
    keep: int
    device: torch.device
    """Where small messages between ranks travel."""
    verified: list[int] = field(default_factory=list[int])
    """Steps this run restored (and so verified) or wrote (and so digested)."""
    _pending: _PendingSave | None = None
    _staging: StagingBuffer | None = None

    @classmethod
    def open(cls, placement: Placement, *, keep: int, device: torch.device) -> Checkpointer | None:
        """Claim the job's folder; None where the job has none.

        Raises:
            StaleMembershipError: a newer membership of this job owns it.
            CorruptCheckpointError: who owns it cannot be told, or a step was acknowledged and there
                is no folder to find it in.
            CheckpointError: rank 0 cannot use the folder.
        """
        if placement.checkpoint_folder is None:
            if placement.acknowledged_step is not None:
                raise CorruptCheckpointError(
                    f"step {placement.acknowledged_step} was acknowledged, and there is no"
                    " checkpoint folder to restore it from"
                )
            return None
        folder = CheckpointFolder(
            path=placement.checkpoint_folder,
            owner=placement.owner,
            membership=placement.membership,
        )
        _claim(folder, device=device)
        writer = RankWriter(folder=folder, rank=placement.rank, world_size=placement.world_size)
        return cls(folder=folder, writer=writer, keep=keep, device=device)

    def restore(
        self, slices: Sequence[Slice], *, placement: Placement
    ) -> RestoredCheckpoint | None:
        """See `checkpoint.restore.restore`."""
        restored = restore(
            folder=self.folder,
            slices=slices,
            device=self.device,
            acknowledged_step=placement.acknowledged_step,
            acknowledged_digest=placement.acknowledged_digest,
        )
        if restored is not None:
            self.verified.append(restored.step)
        return restored

    def save(
        self, *, step: int, slices: Sequence[Slice], trainer: Mapping[str, Any]
    ) -> SavedCheckpoint:
        """Write and commit one checkpoint, then drop what is older than the ones to keep.

        Args:
            step: finished optimizer steps; names the checkpoint.
            slices: what this rank holds; those of all ranks must make up whole tensors.
            trainer: JSON values of the trainer's own state, the same on every rank.

        Raises:
            SaveError: a rank could not write; nothing was committed.
            StaleMembershipError: another one owns the folder by now; nothing was committed.
        """
        began = time.monotonic()
        report = self.writer.write(step, slices_to_write(slices))
        reports = gather_bytes(report, device=self.device)
        verdict = b""
        if dist.get_rank() == 0:
            verdict = self._commit(step, trainer=trainer, reports=reports)
        verdict = broadcast_bytes(verdict, device=self.device)
        seconds = time.monotonic() - began
        return self._saved(verdict, step=step, seconds=seconds, write_seconds=seconds)

    def begin(self, *, step: int, slices: Sequence[Slice], trainer: Mapping[str, Any]) -> None:
        """Copy what `save` would write, and write it behind training."""
        assert self._pending is None  # noqa: S101 - one at a time
        began = time.monotonic()
        if self._staging is None:
            self._staging = StagingBuffer(slices_to_write(slices))
        copy = self._staging
        copy.stage()
        behind = BackgroundSave(
            write=lambda check: self.writer.write(step, copy.parts, check=check),
            commit=lambda reports: self._commit(step, trainer=trainer, reports=reports),
            device=self.device,
        )
        self._pending = _PendingSave(step=step, background=behind, seconds=time.monotonic() - began)

    @property
    def pending_step(self) -> int | None:
        """The step of the save that has begun and is not committed."""
        return None if self._pending is None else self._pending.step

    @property
    def ready(self) -> bool:
        """Whether a save is under way and does not wait for this rank."""
        return self._pending is not None and self._pending.background.ready

    def advance(self) -> SavedCheckpoint | None:
        """Bring the save one stage further, waiting for whoever is not ready.

        Returns:
            What is committed, after the last stage.

        Raises:
            SaveError, StaleMembershipError: as `save` does.
        """
        assert self._pending is not None  # noqa: S101 - it is ready
        now, began = self._pending, time.monotonic()
        verdict = now.background.advance()
        now.seconds += time.monotonic() - began
        if verdict is None:
            return None
        self._pending = None
        return self._saved(
            verdict, step=now.step, seconds=now.seconds, write_seconds=now.background.seconds
        )

    def cancel(self) -> None:
        """Forget the save under way, if any: this membership has ended."""
        if self._pending is not None:
            self._pending.background.cancel()
            self._pending = None

    def _commit(self, step: int, *, trainer: Mapping[str, Any], reports: list[bytes]) -> bytes:
        """On rank 0; maybe in a thread."""
        verdict = commit(self.folder, step=step, trainer=trainer, reports=reports)
        if "digest" in json.loads(verdict):
            self.folder.prune(keep=self.keep, verified=self._verified_with(step))
        return verdict

    def _saved(
        self, verdict: bytes, *, step: int, seconds: float, write_seconds: float
    ) -> SavedCheckpoint:
        made = saved(verdict, step=step, seconds=seconds, write_seconds=write_seconds)
        self.verified = self._verified_with(step)
        return made

    def _verified_with(self, step: int) -> list[int]:
        return [*(kept for kept in self.verified if kept != step), step][-self.keep :]

    def read_back(self, saved: SavedCheckpoint) -> str:
        """See `checkpoint.restore.read_back`."""
        return read_back(self.folder, step=saved.step, digest=saved.digest, device=self.device)


def _claim(folder: CheckpointFolder, *, device: torch.device) -> None:
    """Rank 0 claims; the others hear how it went, so that none of them waits in vain."""
    kinds = {kind.__name__: kind for kind in (StaleMembershipError, CorruptCheckpointError)}
    verdict = "claimed"
    if dist.get_rank() == 0:
        try:
            folder.claim()
        except CheckpointError as error:
            verdict = f"{type(error).__name__} {error}"
        except OSError as error:
            verdict = f"OSError checkpoint folder {folder.path}: {error.strerror}"
    verdict = broadcast_bytes(verdict.encode(), device=device).decode()
    if verdict != "claimed":
        kind, _, reason = verdict.partition(" ")
        raise kinds.get(kind, CheckpointError)(reason)
