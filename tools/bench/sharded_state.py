"""What benches of checkpoints save, weights and moments of several ranks, and how they time it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

CPU: Final = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedState:
    """A rank's share of a model, and what a checkpoint saves of it."""

    model: ParallelModel
    slices: Sequence[TensorSlice]
    """Weights, initialized, and their moments."""
    batch: Tensor
    """Tokens of this rank [2, sequence], int64."""

    @classmethod
    def joined(cls, placement: Placement, config: TrainerConfig) -> ShardedState:
        """Join the others."""
        join(placement, device=CPU)
        world = World.join(validated_layout(config, world_size=placement.world_size), device=CPU)
        model = assemble(config, world)
        initialize_slices(model.slices, config=config.model, seed=config.seed)
        length = config.data.sequence_length
        return cls(
            model=model,
            slices=ShardedAdamW(model.slices, config.optimizer).slices(),
            batch=torch.arange(2 * length).view(2, length) % config.model.vocab_size,
        )

    def change(self) -> None:
        """Change every element."""
        for local in self.slices:
            local.tensor.add_(1e-6)

    def compute_gradients(self) -> None:
        """Compute what a step computes before its update; collective."""
        self.model.begin_step(targets=self.batch.numel() * dist.get_world_size())
        self.model.micro_batch_loss(self.batch, self.batch, ()).backward()  # pyright: ignore[reportUnknownMemberType] - untyped in torch

    def standstill_seconds(self, checkpoints: Checkpointer, *, step: int) -> float:
        """Return the seconds for which a save behind training stops it. Collective."""
        dist.barrier()
        checkpoints.begin(step=step, slices=self.slices, trainer={})
        self.compute_gradients()
        checkpoints.finish_copy()  # the update would follow
        made = None
        while made is None:
            while not checkpoints.ready:  # training would continue meanwhile
                time.sleep(0.01)
            dist.barrier()
            made = checkpoints.advance()
        return made.seconds


def seconds_of_all(work: Callable[[], object]) -> float:
    """From when all ranks begin until all have done their work; collective."""
    dist.barrier()
    began = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - began
