"""The samples and positions of a global batch that this rank computes.

Ranks along the data axes see different samples. Ranks along the tensor and pipeline axes compute
the same samples, and ranks along the context axis different positions of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Axis
from drumline_contract.layout_validation import micro_batch_count
from drumline_trainer.data.cursor import micro_batch_ranges, rank_samples
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.models.documents import Documents
from drumline_trainer.parallelism.context_parallel.zigzag import context_slices
from drumline_trainer.sharding.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShard:
    """This rank's share of every global batch of a membership."""

    dataset: Dataset
    device: torch.device
    batch: int
    """Samples of a global batch."""
    parts: int
    """Into which it is split over the ranks."""
    part: int
    """Index of this rank's part among the `parts`."""
    micro_batch: int
    """Samples of a micro-batch, at most."""
    positions: Tensor | None
    """Positions of each sequence that this rank holds, int64 [S]. None: all."""

    @classmethod
    def of(cls, dataset: Dataset, *, config: TrainerConfig, world: World) -> BatchShard:
        """Compute this rank's share from the layout.

        Args:
            dataset: the samples.
            config: the run's configuration.
            world: this rank's process groups.
        """
        layout, at = world.layout, world.layout.coordinate(world.rank)
        parts, positions = micro_batch_count(layout, config), None
        # With context parallelism each rank holds two chunks of every sequence.
        if layout.context > 1:
            held = context_slices(
                config.data.sequence_length, size=layout.context, index=world.index(Axis.CONTEXT)
            )
            positions = torch.from_numpy(held)  # pyright: ignore[reportUnknownMemberType] - torch gives the array no type
        return cls(
            dataset=dataset,
            device=world.device,
            batch=config.global_batch_size,
            parts=layout.batch_ranks,
            part=at.replicate * layout.shard + at.shard,
            micro_batch=math.ceil(config.global_batch_size // layout.batch_ranks / parts),
            positions=positions,
        )

    def load(self, cursor: int) -> StepBatch:
        """Load this rank's samples of the global batch at `cursor`, into host memory.

        Runs in another thread than training. Remote data of the next step is requested, too.
        """
        # Samples of the next step: remote storage needs a step's time to answer.
        self.dataset.prefetch(self._samples(cursor + self.batch))
        samples = range(cursor, cursor + self.batch)
        micro_batches = micro_batch_ranges(
            cursor, batch=self.batch, rank=self.part, world_size=self.parts, size=self.micro_batch
        )
        return StepBatch(
            targets=self.dataset.target_count(samples),
            tokens=self.dataset.token_count(samples),
            micro_batches=[self._read(samples) for samples in micro_batches],
        )

    def _samples(self, cursor: int) -> range:
        return rank_samples(cursor, batch=self.batch, rank=self.part, world_size=self.parts)

    def _read(self, samples: range) -> MicroBatch:
        batch = self.dataset.batch(samples)
        inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)  # pyright: ignore[reportUnknownMemberType] - torch gives the arrays no type
        # Documents stay whole below: attention needs their borders on all ranks.
        if self.positions is not None:
            inputs, targets = inputs[:, self.positions], targets[:, self.positions]
        documents = None
        if batch.documents is not None and batch.positions is not None:
            documents = Documents.of(batch.documents, batch.positions, filled_B=batch.filled)
        if self.device.type == "cuda":  # else the copy would wait for what the GPU is at
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
            documents = documents and documents.pinned()
        return MicroBatch(samples=samples, inputs=inputs, targets=targets, documents=documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Samples that pass through the model together."""

    samples: range
    inputs: Tensor
    """Shape B S, or of images B C H W."""
    targets: Tensor
    """Shape B S, or B."""
    documents: Documents | None = None
    """Documents of whole windows, if documents are separate, even if `inputs` is a part of the
    positions."""

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, tuple[Documents, ...]]:
        """Copy inputs, targets and further arguments of the model to the device.

        Call it in the training thread.

        Returns:
            Inputs [batch, positions] (or images [batch, channels, height, width]), targets [batch,
            positions] (or classes [batch]), and the documents if there are any.
        """
        return (
            self.inputs.to(device, non_blocking=True),
            self.targets.to(device, non_blocking=True),
            () if self.documents is None else (self.documents.to(device),),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """This rank's share of a global batch."""

    targets: int
    """Predictions that count in the whole global batch."""
    micro_batches: Sequence[MicroBatch]
    tokens: int | None = None
    """Number of inputs in the whole global batch without padding. None: as many as targets."""
