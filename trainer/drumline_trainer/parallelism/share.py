"""Which samples and which positions of a global batch are this rank's.

Ranks on the data axes see samples that nobody else sees. Those along the tensor and pipeline axes
work on the same ones, and those along the context axis on different positions of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from drumline_trainer.config import TrainerConfig
from drumline_trainer.data.batches import Dataset
from drumline_trainer.layout import Axis
from drumline_trainer.legality import micro_batches
from drumline_trainer.parallelism.world import World
from drumline_trainer.parallelism.zigzag import context_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The same for every step of a membership."""

    dataset: Dataset
    device: torch.device
    batch: int
    """Samples of a global batch."""
    parts: int
    """Into which it is split over the ranks."""
    part: int
    """Which of them is this rank's."""
    micro_batch: int
    """Samples of a micro-batch, at most."""
    positions: Tensor | None
    """Of each sequence; None for all."""

    @classmethod
    def of(cls, dataset: Dataset, *, config: TrainerConfig, world: World) -> Share:
        """What the layout gives this rank."""
        layout, at = world.layout, world.layout.coordinate(world.rank)
        parts, positions = micro_batches(layout, config), None
        if layout.context > 1:
            held = context_slices(
                config.data.sequence_length, size=layout.context, index=world.index(Axis.CONTEXT)
            )
            positions = torch.from_numpy(held)
        return cls(
            dataset=dataset,
            device=world.device,
            batch=config.global_batch_size,
            parts=layout.batch_ranks,
            part=at.replicate * layout.shard + at.shard,
            micro_batch=math.ceil(config.global_batch_size // layout.batch_ranks / parts),
            positions=positions,
        )

    def targets(self, cursor: int) -> int:
        """Predictions that count in the whole global batch at `cursor`."""
        return self.dataset.target_count(range(cursor, cursor + self.batch))

    def samples(self, cursor: int) -> list[range]:
        """This rank's micro-batches of the global batch at `cursor`."""
        return self.dataset.micro_batches(
            cursor,
            batch=self.batch,
            rank=self.part,
            world_size=self.parts,
            size=self.micro_batch,
        )

    def load(self, samples: range) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples on the device, shape B S each."""
        batch = self.dataset.batch(samples)
        inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
        if self.positions is not None:
            inputs, targets = inputs[:, self.positions], targets[:, self.positions]
        return (
            inputs.to(self.device, non_blocking=True),
            targets.to(self.device, non_blocking=True),
        )
