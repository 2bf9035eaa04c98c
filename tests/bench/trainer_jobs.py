"""What ranks of a warm pool are timed at: the start of a layout, and a checkpoint."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from drumline_trainer.checkpoint import shard_file
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.config import TrainerConfig
from drumline_trainer.legality import checked_layout
from drumline_trainer.metrics.reporter import Reporter
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.parallelism.assembly import assemble
from drumline_trainer.parallelism.slices import Slice
from drumline_trainer.parallelism.world import World
from drumline_trainer.placement import Placement
from drumline_trainer.recovery.joining import join
from drumline_trainer.recovery.savepoints import SavePoints
from drumline_trainer.train import train

CPU = torch.device("cpu")


def first_step(placement: Placement, config: TrainerConfig) -> tuple[float, float]:
    """Seconds until all ranks have met, and until the first step is done; as after a recovery."""
    began = time.perf_counter()
    done: list[float] = []
    join(placement, device=CPU)
    joined = time.perf_counter() - began
    reporter = Reporter(
        config=config,
        placement=placement,
        pulse=None,
        write=lambda _: done.append(time.perf_counter() - began),
        losses_file=None,
        peak_flops=None,
    )
    with SavePoints(
        config=config, placement=placement, device=CPU, reporter=reporter
    ) as savepoints:
        train(config, device=CPU, reporter=reporter, savepoints=savepoints)
    dist.barrier()
    return joined, done[0] if done else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Seconds of saves, taken in turns."""

    size_bytes: int
    """Of all ranks."""
    digested: list[float]
    """As it is."""
    undigested: list[float]
    """Without working out any digest of a shard."""
    bare: list[float]
    """Only the bytes, written and synced."""


def stall(placement: Placement, config: TrainerConfig, times: int) -> Stall:
    """Save a sharded state; collective."""
    join(placement, device=CPU)
    world = World.join(checked_layout(config, world_size=placement.world_size), device=CPU)
    trainee = assemble(config, world)
    initialize_slices(trainee.slices, config=config.model, seed=config.seed)
    optimizer = ShardedAdamW(trainee.slices, config.optimizer)
    slices = optimizer.slices()
    checkpoints = Checkpointer.open(placement, keep=1, device=CPU)
    assert checkpoints is not None
    assert placement.checkpoint_folder is not None
    size_bytes = checkpoints.save(step=1, slices=slices, trainer={}).size_bytes  # warms up
    taken: dict[str, list[float]] = {"digested": [], "undigested": [], "bare": []}
    for number in range(times):
        for kind, seconds in taken.items():
            dist.barrier()
            began = time.perf_counter()
            if kind == "bare":
                _write(placement.checkpoint_folder / f"bare-{placement.rank}", slices)
            else:
                with _digests(on=kind == "digested"):
                    step = 2 + 2 * number + (kind == "undigested")
                    checkpoints.save(step=step, slices=slices, trainer={})
            dist.barrier()
            seconds.append(time.perf_counter() - began)
    dist.barrier()
    if placement.rank == 0:
        shutil.rmtree(placement.checkpoint_folder)
    return Stall(size_bytes=size_bytes, **taken)


@contextmanager
def _digests(*, on: bool) -> Iterator[None]:
    """Without them a shard's digest is zeros, and nothing is worked out."""
    if on:
        yield
        return
    known = shard_file.hasher
    shard_file.hasher = lambda: SimpleNamespace(update=lambda _: None, hexdigest=lambda: "0" * 32)  # type: ignore[assignment]
    try:
        yield
    finally:
        shard_file.hasher = known


def _write(path: Path, slices: Sequence[Slice]) -> None:
    with path.open("wb", buffering=0) as file:
        for part in slices:
            file.write(part.tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
        os.fsync(file.fileno())
