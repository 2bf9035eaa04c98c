"""What a checkpoint in a bucket costs beside the same bytes sent and fetched by nothing else.

An S3 server on loopback that shares the processors with both ranks, and one disk. The fastest of
several counts of each kind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import obstore
from obstore.store import from_url

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.checkpointer import Checkpointer
from tests.layouts.pool import Pool
from tests.object_store import BUCKET, running
from tools.bench.report import FOLDER, Row
from tools.bench.sharded_state import CPU, ShardedState, seconds_of_all

ROUNDS = 5
PART_BYTES = 8 << 20
PARTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Seconds of both ranks together, taken in turns."""

    size_bytes: int
    """Of all ranks."""
    saved: list[float] = field(default_factory=list[float])
    """A whole save, waited for."""
    behind: list[float] = field(default_factory=list[float])
    """That training stands still for a save behind it."""
    sent: list[float] = field(default_factory=list[float])
    """The same bytes out of memory, in the same parts, without a digest or a commit."""
    restored: list[float] = field(default_factory=list[float])
    fetched: list[float] = field(default_factory=list[float])
    """The same objects, thrown away."""


def rows(pool: Pool, config: TrainerConfig) -> Iterator[Row]:
    """Of two ranks."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, running(Path(folder)) as store:
        made: Transfers = pool.run(
            transfers,
            config,
            store.environment(),
            ranks=2,
            seconds=600,
            checkpoint_bucket=f"s3://{BUCKET}/bench",
        )
    megabytes = made.size_bytes / 1e6
    yield Row(name="bucket, fsdp, 2 ranks: size", value=megabytes, unit="MB")
    for name, ours, raw in (
        ("save", made.saved, made.sent),
        ("restore", made.restored, made.fetched),
    ):
        yield Row(name=f"bucket: {name}", value=megabytes / min(ours), unit="MB/s")
        yield Row(name=f"bucket: {name}, bytes alone", value=megabytes / min(raw), unit="MB/s")
        yield Row(name=f"bucket: {name} / bytes alone", value=min(ours) / min(raw), unit="x")
    stall = min(made.behind)
    yield Row(name="bucket: save behind training: standstill", value=stall, unit="s")
    share = 100 * stall / min(made.saved)
    yield Row(name="bucket: behind training / waited for", value=share, unit="%")


def transfers(
    placement: Placement, config: TrainerConfig, environment: Mapping[str, str]
) -> Transfers:
    """Save, send, restore and fetch a sharded state in turns; collective."""
    os.environ.update(environment)
    state = ShardedState.joined(placement, config)
    slices = state.slices
    checkpoints = Checkpointer.open(placement, keep=1, device=CPU)
    assert checkpoints is not None
    assert placement.checkpoint_bucket is not None
    store = from_url(placement.checkpoint_bucket, client_options={"allow_http": True})
    step = 0

    def change() -> None:
        nonlocal step
        step += 1
        state.change()

    def save() -> object:
        return checkpoints.save(step=step, slices=slices, trainer={})

    size = checkpoints.save(step=step, slices=slices, trainer={}).size_bytes
    raw = memoryview(bytes(size // placement.world_size))
    key = f"raw-{placement.rank}"
    taken = Transfers(size_bytes=size)
    for _ in range(ROUNDS):
        change()
        taken.saved.append(seconds_of_all(save))
        taken.sent.append(
            seconds_of_all(
                lambda: obstore.put(
                    store, key, raw, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
                )
            )
        )
        change()
        taken.behind.append(state.standstill_seconds(checkpoints, step=step))
        taken.restored.append(
            seconds_of_all(lambda: checkpoints.restore(slices, placement=placement))
        )
        taken.fetched.append(
            seconds_of_all(lambda: sum(len(part) for part in obstore.get(store, key).stream()))
        )
    return taken
