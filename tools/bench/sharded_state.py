"""What benches of checkpoints save, weights and moments of several ranks, and how they time it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

CPU: Final = torch.device("cpu")


def joined_state(placement: Placement, config: TrainerConfig) -> Sequence[TensorSlice]:
    """Join the others; this rank's share of the weights, initialized, and of their moments."""
    join(placement, device=CPU)
    world = World.join(validated_layout(config, world_size=placement.world_size), device=CPU)
    parallel_model = assemble(config, world)
    initialize_slices(parallel_model.slices, config=config.model, seed=config.seed)
    return ShardedAdamW(parallel_model.slices, config.optimizer).slices()


def standstill_seconds(
    checkpoints: Checkpointer, *, step: int, slices: Sequence[TensorSlice]
) -> float:
    """How long training stands still for a save that goes on behind it; collective."""
    dist.barrier()
    checkpoints.begin(step=step, slices=slices, trainer={})
    made = None
    while made is None:
        while not checkpoints.ready:  # this is when training would go on
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
