"""Commits of checkpoints of 1,024 ranks: their manifests, and how long training cannot go on.

A commit runs in a thread beside training, which stands still while the other has the interpreter's
lock (GIL). A thread that ticks measures that, by the processor time that the commit took between
two ticks: what else the machine does is not counted.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline_contract.config.presets import MODEL_PRESETS
from drumline_trainer.checkpoint.commit import Committed, commit
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.manifest import MANIFEST_FILE, FileRecord, Manifest
from drumline_trainer.checkpoint.rank_report import SliceGroup, WrittenFile, encode_report
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.parallelism.data_parallel.buckets import piece_of
from tools.bench.report import Row

RANKS = 1024
STEP = 8
PREFIXES = ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq")
MOST_SECONDS = 0.020
MOST_BYTES = 1 << 20
TICK = 0.0005
RUNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one commit."""

    seconds: float
    """Of its processor time."""
    held: float
    """The most of it between two ticks."""


def reports_of(preset: str) -> list[bytes]:
    """Of ranks that share every tensor and its moments by rows."""
    shapes = {
        name: tuple(parameter.shape)
        for name, parameter in build_on_meta(MODEL_PRESETS[preset]).named_parameters()
    }
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, shape in shapes.items():
        by_shape.setdefault(shape, []).extend(f"{prefix}.{name}" for prefix in PREFIXES)
    names = {shape: "\n".join(sorted(same)) for shape, same in by_shape.items()}
    return [encode_report((_file_of(rank, names),)) for rank in range(RANKS)]


def _file_of(rank: int, names: dict[tuple[int, ...], str]) -> WrittenFile:
    boxes = {shape: piece_of(shape, index=rank, parts=RANKS) for shape in names}
    return WrittenFile(
        name=f"rank-{rank:05d}.safetensors",
        record=FileRecord(size_bytes=1 << 30, digest=f"{rank:032x}"),
        groups=tuple(
            SliceGroup(dtype="F32", shape=shape, box=boxes[shape], names=same)
            for shape, same in names.items()
            if boxes[shape].elements
        ),
    )


def measured(folder: CheckpointFolder, reports: Sequence[bytes]) -> Measured:
    """Commit in a thread, and tick beside it."""
    failed: list[object] = []
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.wait()
        outcome = commit(folder, step=STEP, trainer={"cursor": 1}, reports=reports)
        if not isinstance(outcome, Committed):
            failed.append(outcome)
        over.set()
        ticked.wait()

    ticked = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert thread.ident is not None  # it was started
    clock = time.pthread_getcpuclockid(thread.ident)
    first = last = time.clock_gettime(clock)
    held = 0.0
    begun.set()
    while not over.is_set():
        time.sleep(TICK)
        now = time.clock_gettime(clock)
        held, last = max(held, now - last), now
    ticked.set()
    thread.join()
    if failed:
        raise AssertionError(f"not committed: {failed[0]}")
    return Measured(seconds=last - first, held=held)


def _folder(scratch: Path, number: int) -> CheckpointFolder:
    folder = CheckpointFolder(path=scratch / str(number), owner="bench", membership=(1, 0))
    folder.claim()
    folder.unfinished_folder(STEP).mkdir()
    return folder


def rows() -> Iterator[Row]:
    """Of the largest model."""
    reports = reports_of("llama-405b")
    with tempfile.TemporaryDirectory() as scratch:
        made = [measured(_folder(Path(scratch), number), reports) for number in range(RUNS)]
        body = next(Path(scratch).rglob(MANIFEST_FILE)).read_bytes()
    read = Manifest.parse(body)
    pieces = sum(len(record.pieces) for record in read.tensors.values())
    name = f"405B over {RANKS} ranks: a manifest of {pieces / 1e6:.1f} million pieces"
    yield Row(
        name=name,
        value=len(body) / 2**20,
        unit="MiB",
        goal="<= 1 MiB",
        met=len(body) <= MOST_BYTES and read.world_size == RANKS,
    )
    held = min(run.held for run in made)  # a thread that waits for a processor only adds to it
    least = min(run.seconds for run in made)
    yield Row(name="its commit, processor time", value=least, unit="s")
    yield Row(
        name="the longest that it keeps the interpreter's lock",
        value=held * 1000,
        unit="ms",
        goal=f"<= {MOST_SECONDS * 1000:.0f} ms",
        met=held <= MOST_SECONDS,
    )
