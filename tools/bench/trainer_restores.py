"""What a restore of copies costs: each rank reads for itself, or each file is read by one for all.

Two ranks of one machine with a copy of the model each, so each needs the whole checkpoint, from a
folder that is in the page cache and from an S3 server on loopback. The fastest of several counts of
each kind, taken in turns.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.checkpoint.restore import restore
from tests.gloo.counted_reads import CountedStorage
from tests.layouts.pool import Pool
from tests.object_store import BUCKET, running
from tools.bench.report import FOLDER, Row
from tools.bench.sharded_state import CPU, ShardedState, seconds_of_all

ROUNDS = 7
RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Restores:
    """Of both ranks together."""

    size_bytes: int
    alone: list[float] = field(default_factory=list[float])
    """Seconds where each rank reads for itself."""
    shared: list[float] = field(default_factory=list[float])
    """Seconds where each file is read once."""
    read_alone: int = 0
    read_shared: int = 0


def rows(pool: Pool, config: TrainerConfig) -> Iterator[Row]:
    """From both kinds of storage."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, running(Path(folder)) as store:
        places = {
            "folder": {"checkpoint_folder": Path(folder) / "checkpoints"},
            "bucket": {"checkpoint_bucket": f"s3://{BUCKET}/restores"},
        }
        for name, place in places.items():
            made: Restores = pool.run(
                restores, config, store.environment(), ranks=RANKS, seconds=600, **place
            )
            yield from _rows(f"{name}, ddp, {RANKS} ranks", made)


def _rows(name: str, made: Restores) -> Iterator[Row]:
    alone, shared = min(made.alone), min(made.shared)
    for kind, seconds, read in (
        ("each reads for itself", alone, made.read_alone),
        ("each file is read once", shared, made.read_shared),
    ):
        yield Row(name=f"restore, {name}: {kind}", value=seconds, unit="s")
        yield Row(name=f"restore, {name}: {kind}: read", value=read / made.size_bytes, unit="x")
    yield Row(name=f"restore, {name}: read once / for itself", value=shared / alone, unit="x")


def restores(
    placement: Placement, config: TrainerConfig, environment: Mapping[str, str]
) -> Restores:
    """Save a state of copies, and restore it in turns in both ways; collective."""
    os.environ.update(environment)
    slices = ShardedState.joined(placement, config).slices
    checkpoints = Checkpointer.open(placement, keep=1, device=CPU)
    assert checkpoints is not None
    size = checkpoints.save(step=1, slices=slices, trainer={}).size_bytes

    def measured(*, host: str) -> tuple[float, int]:
        socket.gethostname = lambda: host
        counted = CountedStorage(storage=checkpoints.storage, is_cached_by_nodes=True)
        seconds = seconds_of_all(lambda: restore(storage=counted, slices=slices, device=CPU))
        read = torch.tensor([counted.read_bytes])
        dist.all_reduce(read)
        return seconds, int(read)

    alone: list[tuple[float, int]] = []
    shared: list[tuple[float, int]] = []
    for _ in range(ROUNDS):
        alone.append(measured(host="here"))
        shared.append(measured(host=f"host {placement.rank}"))
    return Restores(
        size_bytes=size,
        alone=[seconds for seconds, _ in alone],
        shared=[seconds for seconds, _ in shared],
        read_alone=alone[0][1],
        read_shared=shared[0][1],
    )
