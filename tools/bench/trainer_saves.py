"""What a checkpoint costs: standing still for it, digests, and what need not be written again.

The fastest of several counts, of each kind: what others do on the machine only ever adds. Digests
are counted in processor time, because a save takes longer by that at most.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint import shard_file
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.sharding.slices import TensorSlice
from tests.layouts.pool import Pool
from tools.bench.report import FOLDER, Row
from tools.bench.sharded_state import CPU, ShardedState, seconds_of_all

SAVES = 7
STALL_GOAL = 0.03
DIGEST_GOAL = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Seconds of saves, taken in turns."""

    size_bytes: int = 0
    """Of all ranks."""
    digested: list[float] = field(default_factory=list[float])
    """As it is, waited for."""
    digested_busy: list[float] = field(default_factory=list[float])
    """Processor time of rank 0 in the same saves."""
    undigested: list[float] = field(default_factory=list[float])
    """Without working out any digest of a shard."""
    undigested_busy: list[float] = field(default_factory=list[float])
    bare: list[float] = field(default_factory=list[float])
    """Only the bytes, written and synced."""
    behind: list[float] = field(default_factory=list[float])
    """That training stands still for a save behind it."""
    unchanged: list[float] = field(default_factory=list[float])
    """Where nothing but a norm has changed, waited for."""


def rows(pool: Pool, config: TrainerConfig) -> Iterator[Row]:
    """Of two ranks that share one disk."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:  # memory is what /tmp may be
        made: Saves = pool.run(
            saves, config, ranks=2, seconds=300, checkpoint_folder=Path(folder) / "checkpoints"
        )
    whole, without, bare = map(min, (made.digested, made.undigested, made.bare))
    digests = min(made.digested_busy) - min(made.undigested_busy)
    cost = digests / whole
    stall = min(made.behind) / whole
    yield from (
        Row(name="save, fsdp, 2 ranks: size", value=made.size_bytes / 1e6, unit="MB"),
        Row(name="save, waited for: training stands still for", value=whole, unit="s"),
        Row(
            name="save behind training: training stands still for",
            value=min(made.behind),
            unit="s",
        ),
        Row(
            name="save: behind training / waited for",
            value=100 * stall,
            unit="%",
            goal=f"<= {100 * STALL_GOAL:.0f} %",
            met=stall <= STALL_GOAL,
        ),
        Row(name="save without digests", value=without, unit="s"),
        Row(name="save: only the bytes, written and synced", value=bare, unit="s"),
        Row(name="save: processor time of digests", value=1000 * digests, unit="ms"),
        Row(
            name="save: processor time of digests / waited for",
            value=100 * cost,
            unit="%",
            goal=f"<= {100 * DIGEST_GOAL:.0f} %",
            met=cost <= DIGEST_GOAL,
        ),
        Row(
            name="save, nothing but the norms changed: training stands still for",
            value=min(made.unchanged),
            unit="s",
        ),
    )


def saves(placement: Placement, config: TrainerConfig) -> Saves:
    """Save a sharded state in every way; collective."""
    state = ShardedState.joined(placement, config)
    slices = state.slices
    norms = [each_slice for each_slice in slices if "norm" in each_slice.name]
    checkpoints = Checkpointer.open(placement, keep=1, device=CPU)
    assert checkpoints is not None
    assert placement.checkpoint_folder is not None
    step = 0

    def save(*, change: Sequence[TensorSlice] = slices) -> float:
        nonlocal step
        step += 1
        for item in change:
            item.tensor.add_(1.0)
        return seconds_of_all(lambda: checkpoints.save(step=step, slices=slices, trainer={}))

    def behind() -> float:
        nonlocal step
        step += 1
        state.change()
        return state.standstill_seconds(checkpoints, step=step)

    def busy_save() -> tuple[float, float]:
        began = time.process_time()
        return save(), time.process_time() - began

    bare = placement.checkpoint_folder / f"bare-{placement.rank}"
    save()
    behind()
    taken = Saves(size_bytes=checkpoints.save(step=step, slices=slices, trainer={}).size_bytes)
    for _ in range(SAVES):
        digested, digested_busy = busy_save()
        with _no_digests():
            undigested, undigested_busy = busy_save()
        taken.digested.append(digested)
        taken.digested_busy.append(digested_busy)
        taken.undigested.append(undigested)
        taken.undigested_busy.append(undigested_busy)
        taken.behind.append(behind())
        taken.bare.append(seconds_of_all(lambda: _write(bare, slices)))
    for number in range(SAVES + 2):  # the first two learn what is still
        seconds = save(change=norms)
        if number >= 2:
            taken.unchanged.append(seconds)
    dist.barrier()
    if placement.rank == 0:
        shutil.rmtree(placement.checkpoint_folder)
    return taken


@contextmanager
def _no_digests() -> Iterator[None]:
    """A shard's digest is zeros, and nothing is worked out."""
    known = shard_file.hasher
    shard_file.hasher = lambda: SimpleNamespace(update=lambda _: None, hexdigest=lambda: "0" * 32)  # type: ignore[assignment]
    try:
        yield
    finally:
        shard_file.hasher = known


def _write(path: Path, slices: Sequence[TensorSlice]) -> None:
    with path.open("wb", buffering=0) as file:
        for part in slices:
            file.write(part.tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
        os.fsync(file.fileno())
