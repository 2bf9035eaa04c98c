"""What a restore of copies costs: each rank reads for itself, or each file is read by one for all.

Two ranks of one Pod with a copy of the model each, so each needs the whole checkpoint. From a
folder in the page cache both read it, as a restore does on processors. From an S3 server on
loopback one reads each file, as a restore does, beside two that read for themselves. The fastest of
several counts of each kind, taken in turns.
"""

from __future__ import annotations

import os
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


@dataclass(slots=True, kw_only=True)
class Restored:
    """Sum over both ranks."""

    seconds: list[float] = field(default_factory=list[float])
    read: int = 0
    """Bytes of a restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restores:
    """Restores of one storage, taken in turns."""

    size: int
    """Bytes of a checkpoint."""
    alone: Restored = field(default_factory=Restored)
    """Each rank reads for itself."""
    shared: Restored | None = None
    """Each file is read once. None: no restore of this storage on one host does so."""


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
    kinds = {"each reads for itself": made.alone, "each file is read once": made.shared}
    for kind, of in kinds.items():
        if of is not None:
            yield Row(name=f"restore, {name}: {kind}", value=min(of.seconds), unit="s")
            yield Row(name=f"restore, {name}: {kind}: read", value=of.read / made.size, unit="x")
    if made.shared is not None:
        ratio = min(made.shared.seconds) / min(made.alone.seconds)
        yield Row(name=f"restore, {name}: read once / for itself", value=ratio, unit="x")


def restores(
    placement: Placement, config: TrainerConfig, environment: Mapping[str, str]
) -> Restores:
    """Save a state of copies, and restore it in turns in every way; collective."""
    os.environ.update(environment)
    slices = ShardedState.joined(placement, config).slices
    checkpoints = Checkpointer.open(placement, keep=1, device=CPU)
    assert checkpoints is not None
    made = Restores(
        size=checkpoints.save(step=1, slices=slices, trainer={}).size_bytes,
        shared=Restored() if placement.checkpoint_bucket else None,
    )

    def measure(restored: Restored, *, cached: bool) -> None:
        counted = CountedStorage(storage=checkpoints.storage, is_cached_by_nodes=cached)
        restored.seconds.append(
            seconds_of_all(lambda: restore(storage=counted, slices=slices, device=CPU))
        )
        read = torch.tensor([counted.read_bytes])
        dist.all_reduce(read)
        restored.read = int(read)

    for _ in range(ROUNDS):
        measure(made.alone, cached=True)
        if made.shared is not None:
            measure(made.shared, cached=False)
    return made
