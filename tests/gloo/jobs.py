"""What ranks do in the tests: each function runs in its own process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.checkpoint.errors import CheckpointError
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.rank import exit_code_of, run_rank
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

CPU = torch.device("cpu")


def train_rank(
    placement: Placement, pipe: Connection, config: TrainerConfig, losses_file: Path | None
) -> None:
    """The whole of a rank; sends its heartbeats' JSON lines, leaves with the contract's code."""
    beats: list[str] = []
    try:
        run_rank(
            config=config,
            placement=placement,
            heartbeat=lambda beat: beats.append(beat.to_json()),
            losses_file=losses_file,
            write=beats.append,
        )
    except Exception as error:  # noqa: BLE001 - the process boundary
        pipe.send([f"{type(error).__name__}: {error}"])
        sys.exit(exit_code_of(error))
    pipe.send(beats)


def run_program(
    program: Callable[[list[str]], int | None], arguments: list[str], output: Path, errors: Path
) -> None:
    """A program's `main` without the start of an interpreter; what it prints goes into files."""
    for stream, file in ((sys.stdout, output), (sys.stderr, errors)):
        with file.open("wb") as opened:
            os.dup2(opened.fileno(), stream.fileno())
    sys.exit(program(arguments))


def train_until(
    placement: Placement, pipe: Connection, config: TrainerConfig, step: int, phase: Phase
) -> None:
    """Train, and when `phase` of the step after `step` finished ones begins, stand still there."""

    def stop(beat: Heartbeat) -> None:
        if (beat.step, beat.phase) == (step, phase):
            pipe.send("reached")
            signal.pause()

    run_rank(config=config, placement=placement, heartbeat=stop)


def train_with_death(
    placement: Placement, pipe: Connection, config: TrainerConfig, step: int
) -> None:
    """Rank 1 dies as by SIGKILL after `step` steps; the others report how they end."""

    def die(beat: Heartbeat) -> None:
        if placement.rank == 1 and beat.step == step:
            signal.raise_signal(signal.SIGKILL)

    try:
        run_rank(config=config, placement=placement, heartbeat=die, write=lambda _: None)
    except Exception as error:  # noqa: BLE001 - the process boundary
        pipe.send(str(error))
        sys.exit(exit_code_of(error))


def joined(placement: Placement, config: TrainerConfig) -> tuple[ParallelModel, World]:
    """Join the others and build this rank's share of the model, without values."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    world = World.join(Layout.of(config.parallelism, world_size=placement.world_size), device=CPU)
    return assemble(config, world), world


def training_state(
    placement: Placement, config: TrainerConfig, *, seed: int | None = None
) -> list[TensorSlice]:
    """Join, and give weights and moments; initialized by `seed`, else full of NaN."""
    parallel_model, _ = joined(placement, config)
    slices = ShardedAdamW(parallel_model.slices, config.optimizer).slices()
    if seed is None:
        for local in slices:
            local.tensor.fill_(float("nan"))
    else:
        initialize_slices(parallel_model.slices, config=config.model, seed=seed)
    return slices


def opened(placement: Placement, *, keep: int = 3, continue_from: str = "") -> Checkpointer:
    """The checkpoints of the placement's folder."""
    checkpoints = Checkpointer.open(placement, keep=keep, device=CPU, continue_from=continue_from)
    assert checkpoints is not None
    return checkpoints


def save_steps(
    placement: Placement, pipe: Connection, config: TrainerConfig, steps: list[int], keep: int
) -> None:
    """Save a checkpoint for each step, its weights made from the step as seed."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement, keep=keep)
    for step in steps:
        for local in slices:
            local.tensor.fill_(float(step))
        saved = checkpoints.save(step=step, slices=slices, trainer={"cursor": step})
        assert saved.step == step
    pipe.send(saved.digest)
    dist.destroy_process_group()


def restore_once(
    placement: Placement, pipe: Connection, config: TrainerConfig, continue_from: str = ""
) -> None:
    """Try to restore; send (step, the value all weights have) or the error."""
    slices = training_state(placement, config)
    try:
        checkpoints = opened(placement, continue_from=continue_from)
        restored = checkpoints.restore(slices, placement=placement)
    except (CheckpointError, ValueError) as error:
        pipe.send(f"{type(error).__name__}: {error}")
    else:
        values = {float(x) for local in slices for x in local.tensor.flatten()}
        pipe.send((restored and restored.step, values))
    dist.destroy_process_group()
