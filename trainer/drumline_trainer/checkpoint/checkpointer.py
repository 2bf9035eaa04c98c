"""The checkpoints of one run: claim the folder, restore once, save and prune as it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    StaleMembershipError,
)
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.restore import Restored, read_back, restore
from drumline_trainer.checkpoint.save import Saved, save
from drumline_trainer.parallelism.collectives import broadcast_bytes
from drumline_trainer.parallelism.slices import Slice
from drumline_trainer.placement import Placement


@dataclass(slots=True, kw_only=True)
class Checkpointer:
    """Collective: all ranks make the same calls in the same order."""

    folder: CheckpointFolder
    keep: int
    device: torch.device
    """Where small messages between ranks travel."""
    verified: list[int] = field(default_factory=list[int])
    """Steps this run restored (and so verified) or wrote (and so digested)."""

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
        return cls(folder=folder, keep=keep, device=device)

    def restore(self, slices: Sequence[Slice], *, placement: Placement) -> Restored | None:
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

    def save(self, *, step: int, slices: Sequence[Slice], trainer: Mapping[str, Any]) -> Saved:
        """See `checkpoint.save.save`; then drop what is older than the ones to keep."""
        saved = save(
            folder=self.folder, step=step, slices=slices, trainer=trainer, device=self.device
        )
        self.verified = [*(kept for kept in self.verified if kept != step), step][-self.keep :]
        if dist.get_rank() == 0:
            self.folder.prune(keep=self.keep, verified=self.verified)
        return saved

    def read_back(self, saved: Saved) -> str:
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
