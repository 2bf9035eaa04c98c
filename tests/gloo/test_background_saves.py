"""Saves behind training are whole, in order, or not there."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.background_save import BackgroundSave
from drumline_trainer.checkpoint.checkpointer import Checkpointer, StagingBuffer
from drumline_trainer.checkpoint.errors import CheckpointError
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.sharding.slices import TensorSlice
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import CPU, opened, restore_once, train_rank, training_state
from tests.gloo.stored import same_bits, whole_tensors
from tests.patience import HANG_SECONDS

pytestmark = pytest.mark.extended(keep=4, of="runs of ranks")


def fill(slices: list[TensorSlice], value: float) -> None:
    for local in slices:
        local.tensor.fill_(value)


def committed(checkpoints: Checkpointer) -> int | str:
    """The step that is, once the save under way is over; or what went wrong, and why."""
    made = None
    try:
        while checkpoints.pending_step is not None:
            made = checkpoints.advance()
    except CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    assert made is not None
    return made.step


def save_until_killed(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    """Two saves of values that change while they are written; a third is never committed."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement)
    for step in (1, 2):
        fill(slices, float(step))
        checkpoints.begin(step=step, slices=slices, trainer={"cursor": step})
        checkpoints.finish_copy()
        fill(slices, -1.0)
        assert committed(checkpoints) == step
    fill(slices, 3.0)
    checkpoints.begin(step=3, slices=slices, trainer={"cursor": 3})
    assert checkpoints._pending is not None
    checkpoints._pending.background._work.result()
    pipe.send("written")
    signal.pause()


def train_with_late_copies(
    placement: Placement, pipe: Connection, config: TrainerConfig, losses_file: Path | None
) -> None:
    """Train, and copy only once training waits for the copy or has updated the weights."""
    late = threading.Event()
    order, copy = StagingBuffer.order, StagingBuffer.copy
    finish_copy, update = BackgroundSave.finish_copy, ShardedAdamW.update

    def copy_late(staging: StagingBuffer, check: Callable[[], None]) -> None:
        assert late.wait(HANG_SECONDS)
        copy(staging, check)

    StagingBuffer.order = lambda staging: (late.clear(), order(staging))[1]
    StagingBuffer.copy = copy_late
    BackgroundSave.finish_copy = lambda save, **named: (late.set(), finish_copy(save, **named))[1]
    ShardedAdamW.update = lambda *given, **named: (update(*given, **named), late.set())[0]
    train_rank(placement, pipe, config, losses_file)


def save_slowly(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    """A save whose thread writes chunks until the waiting rank has said that it moves."""
    training_state(placement, config, seed=0)
    moved = threading.Event()

    def write(check: Callable[[], None]) -> bytes:
        while not moved.wait(0.01):
            check()
        return b"report"

    background = BackgroundSave(
        copy=lambda check: check(), write=write, commit=lambda reports: reports[0], device=CPU
    )
    assert background.advance(progress=moved.set) is None
    pipe.send(background.advance())
    dist.destroy_process_group()


def save_in_vain(
    placement: Placement, pipe: Connection, config: TrainerConfig, newer: Placement
) -> None:
    """Rank 1 cannot write; then somebody else takes the folder while a save is under way."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if placement.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    checkpoints.begin(step=1, slices=slices, trainer={})
    outcomes = [committed(checkpoints)]
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    checkpoints.begin(step=2, slices=slices, trainer={})
    opened(newer)
    outcomes.append(committed(checkpoints))
    pipe.send(outcomes)
    dist.destroy_process_group()


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.glob("step-*"))


def test_killed_between_copy_and_commit_nothing_of_it_is_seen(
    gangs: GangStarter, tmp_path: Path
) -> None:
    config, folder = small(tmp_path), tmp_path / "checkpoints"
    asked = {"world_size": 2, "checkpoint_folder": folder}
    with gangs.gang(save_until_killed, config, **asked) as gang:
        assert gang.results() == ["written"] * 2
        gang.kill()
    assert [name.partition(".")[0] for name in names_in(folder)] == [
        "step-00000001",
        "step-00000002",
        "step-00000003",
    ]
    assert ".tmp-" in names_in(folder)[2]
    assert gangs.run(restore_once, config, **asked) == [(2, {2.0})] * 2
    assert names_in(folder) == ["step-00000001", "step-00000002"]


def test_all_ranks_hear_at_once_why_nothing_was_committed(
    gangs: GangStarter, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    newer = Placement(rank=0, world_size=1, owner="new", checkpoint_folder=folder)
    outcomes = gangs.run(
        save_in_vain,
        small(tmp_path),
        newer,
        world_size=2,
        owner="old",
        checkpoint_folder=folder,
    )
    peers, own = (each[0].partition(": ") for each in outcomes)
    assert (peers[0], own[0]) == ("PeerSaveError", "SaveError"), "rank 1 alone is to blame"
    assert peers[2] == own[2]
    assert own[2].startswith("checkpoint of step 1: rank 1: ")
    full, stale = outcomes[0]
    assert outcomes[1][1] == stale
    assert "File too large" in full
    assert stale.startswith("FolderTakenError: CheckpointFolderInUse: held by run")
    assert names_in(folder) == []


def test_a_save_that_is_due_too_early_waits_and_all_are_there_in_the_end(
    gangs: GangStarter, tmp_path: Path
) -> None:
    folders = [tmp_path / "behind", tmp_path / "waited"]
    lines: list[list[str]] = []
    for folder in folders:
        checkpoint = {"every_steps": 1, "keep": 50, "asynchronous": folder.name == "behind"}
        config = small(tmp_path, steps=6, checkpoint=checkpoint)
        job = train_with_late_copies if folder.name == "behind" else train_rank
        lines += gangs.run(job, config, None, world_size=2, checkpoint_folder=folder)[:1]
    names = [f"step-{step:08d}" for step in range(1, 7)]
    assert names_in(folders[0]) == names_in(folders[1]) == names
    assert read_losses(folders[0] / "metrics.jsonl") == read_losses(folders[1] / "metrics.jsonl")
    for name in names:
        behind, waited = (whole_tensors(folder / name) for folder in folders)
        assert same_bits(behind, waited)
    said = [line for line in lines[0] if line.startswith("checkpoint of step ")]
    assert [line.split(":")[0] for line in said] == [f"checkpoint of step {n}" for n in range(1, 7)]
    assert "training stood still for" in said[0]


def test_a_rank_that_waits_for_a_slow_storage_says_that_it_moves(
    gangs: GangStarter, tmp_path: Path
) -> None:
    assert gangs.run(save_slowly, small(tmp_path), world_size=1) == [b"report"]
