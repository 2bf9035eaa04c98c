"""`make bench WHAT=trainer`: the trainer's speed beside a plain script with torch's own wrappers.

Steps, starts and saves, each in turns with what it is compared to, so that the machine's mood is in
both. Parts can be named: `python -m tools.bench.trainer steps toys modules starts layouts
saves buckets restores`. GPUs have `make gpu`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from drumline_contract.config import TrainerConfig, merge
from tests.layouts.pool import Pool
from tools.bench import (
    trainer_buckets,
    trainer_jobs,
    trainer_restores,
    trainer_saves,
    trainer_start,
    trainer_steps,
    trainer_transformers,
)
from tools.bench.report import Row, publish

ROUNDS = {"fsdp": 12, "ddp": 12, "tp": 12}
"""Steps of either side that count."""
WRAPPERS = {
    "fsdp": "plain script with FSDP2",
    "ddp": "plain script with DDP",
    "tp": "plain script with DTensor",
}
IMPORTS = 2
STARTS = 3
LAYOUT_STARTS = 4
"""The first of them imports what the layout needs."""
TOY_ROUNDS = 200
STEP_GOAL = 0.97
TOY_GOAL = 1.05
START_GOAL = 1.3
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp, 4 ranks": (4, {"data_parallel": "fsdp"}),
    "ddp, 4 ranks": (4, {"data_parallel": "ddp"}),
    "zero1, 4 ranks": (4, {"data_parallel": "zero1"}),
    "tp 2": (2, {"tensor": 2}),
    "pp 2": (2, {"pipeline": 2}),
    "fsdp 2 x tp 2 x pp 2": (8, {"data_parallel": "fsdp", "tensor": 2, "pipeline": 2}),
}
SAVED = {"layers": 8, "hidden_size": 384, "ffn_size": 1024, "vocab_size": 512}
"""About 14 million weights, 170 MB with their moments."""


def main(parts: Sequence[str]) -> None:
    """Measure and publish."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"load average of this machine: {os.getloadavg()[0]:.1f}", flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        _write_text(text)
        pool = Pool()
        try:
            for name in parts or PARTS:
                for row in PARTS[name](pool, text):
                    print(f"  {row.name}: {row.value:.3g} {row.unit}", flush=True)
                    rows.append(row)
        finally:
            pool.close()
    command = " ".join(["python -m tools.bench.trainer", *parts])
    publish("trainer", rows, command=command)


def steps(pool: Pool, text: Path) -> Iterator[Row]:
    """A step of ours and one of the plain script, two ranks."""
    for layout, rounds in ROUNDS.items():
        config = trainer_steps.config_of(
            layout, source=text, steps=rounds + trainer_steps.WARM_UP + 1
        )
        made: trainer_steps.Beside = pool.run(
            trainer_steps.beside, layout, config, ranks=2, seconds=300
        )
        if not made.loss_error <= trainer_steps.LOSS_TOLERANCE:
            raise AssertionError(f"{layout}: not the same training: {made.losses}")
        theirs = WRAPPERS[layout]
        yield Row(name=f"step, {layout}: ours", value=1000 * median(made.ours), unit="ms")
        yield Row(name=f"step, {layout}: {theirs}", value=1000 * median(made.theirs), unit="ms")
        yield Row(
            name=f"step, {layout}: {theirs} / ours",
            value=made.ratio,
            unit="x",
            goal=f">= {STEP_GOAL} x",
            met=made.ratio >= STEP_GOAL,
        )


def toys(pool: Pool, text: Path) -> Iterator[Row]:
    """A step of a tiny model, in processor time: what a step costs besides the model."""
    config = trainer_steps.config_of(
        "ddp", source=text, steps=TOY_ROUNDS + trainer_steps.WARM_UP + 1, model=trainer_steps.TOY
    )
    made: trainer_steps.Beside = pool.run(
        trainer_steps.busy_beside, "ddp", config, ranks=2, seconds=600
    )
    if not made.loss_error <= trainer_steps.LOSS_TOLERANCE:
        raise AssertionError(f"toy: not the same training: {made.losses}")
    name, theirs = "processor time of a step, toy, ddp", WRAPPERS["ddp"]
    yield Row(name=f"{name}: ours", value=1000 * median(made.ours), unit="ms")
    yield Row(name=f"{name}: {theirs}", value=1000 * median(made.theirs), unit="ms")
    yield Row(
        name=f"{name}: ours / {theirs}",
        value=1 / made.ratio,
        unit="x",
        goal=f"<= {TOY_GOAL} x",
        met=1 / made.ratio <= TOY_GOAL,
    )


def modules(pool: Pool, text: Path) -> Iterator[Row]:
    """A step of a module of transformers, and one of a plain loop with the same module."""
    for layout in trainer_transformers.LAYOUTS:
        config = trainer_transformers.config_of(
            layout, source=text, steps=ROUNDS["fsdp"] + trainer_steps.WARM_UP + 1
        )
        made: trainer_steps.Beside = pool.run(
            trainer_transformers.beside, config, ranks=2, seconds=300
        )
        if not made.loss_error <= trainer_steps.LOSS_TOLERANCE:
            raise AssertionError(f"{layout}: not the same training: {made.losses}")
        name = f"step of a transformers module, {layout}"
        yield Row(name=f"{name}: ours", value=1000 * median(made.ours), unit="ms")
        yield Row(name=f"{name}: plain loop", value=1000 * median(made.theirs), unit="ms")
        yield Row(
            name=f"{name}: plain loop / ours",
            value=made.ratio,
            unit="x",
            goal=f">= {STEP_GOAL} x",
            met=made.ratio >= STEP_GOAL,
        )


def starts(pool: Pool, text: Path) -> Iterator[Row]:
    """From a process's start to its first step, and imports by layout."""
    del pool
    for name, modules in trainer_start.IMPORTS.items():
        seconds = trainer_start.import_seconds(modules, times=IMPORTS)
        yield Row(name=f"import, {name}", value=seconds, unit="s")
    for layout, ranks, bare in trainer_start.STARTS:
        made = trainer_start.start(layout, ranks, bare, text=text, times=STARTS)
        name = f"start to first step, {layout}, ranks: {ranks}"
        yield Row(name=f"{name}: ours", value=median(made.ours), unit="s")
        named = trainer_start.BARE[bare]
        yield Row(name=f"{name}: {named}", value=median(made.bare), unit="s")
        yield Row(
            name=f"{name}: ours / {named}",
            value=made.ratio,
            unit="x",
            goal=f"<= {START_GOAL} x",
            met=made.ratio <= START_GOAL,
        )


def layouts(pool: Pool, text: Path) -> Iterator[Row]:
    """From joining to the first step in processes that have torch, as after a recovery."""
    for name, (ranks, parallelism) in LAYOUTS.items():
        config = _config(text, steps=1, parallelism=parallelism, model={"layers": 2})
        times = [
            pool.run(trainer_jobs.first_step, config, ranks=ranks) for _ in range(LAYOUT_STARTS)
        ]
        met = median(joined for joined, _ in times[1:])
        done = median(done for _, done in times[1:])
        yield Row(name=f"rejoin, {name}: until all have met", value=met, unit="s")
        yield Row(name=f"rejoin, {name}: until the first step", value=done, unit="s")


def saves(pool: Pool, text: Path) -> Iterator[Row]:
    """How long training stands still for a checkpoint, and what digests cost of it."""
    config = _config(text, parallelism={"data_parallel": "fsdp"}, model=SAVED)
    yield from trainer_saves.rows(pool, config)


def buckets(pool: Pool, text: Path) -> Iterator[Row]:
    """The same state in a bucket of an S3 server on this machine."""
    config = _config(text, parallelism={"data_parallel": "fsdp"}, model=SAVED)
    yield from trainer_buckets.rows(pool, config)


def restores(pool: Pool, text: Path) -> Iterator[Row]:
    """The same state in copies, from a folder and from a bucket."""
    config = _config(text, parallelism={"data_parallel": "ddp"}, model=SAVED)
    yield from trainer_restores.rows(pool, config)


PARTS: dict[str, Callable[[Pool, Path], Iterator[Row]]] = {
    "steps": steps,
    "toys": toys,
    "modules": modules,
    "starts": starts,
    "layouts": layouts,
    "saves": saves,
    "buckets": buckets,
    "restores": restores,
}


def _config(text: Path, **changes: Any) -> TrainerConfig:
    raw = {
        "data": {"sequence_length": 64, "source": str(text)},
        "global_batch_size": 8,
        "log_every_steps": 1,
    }
    return TrainerConfig.from_dict(merge(raw, changes))


def _write_text(folder: Path) -> None:
    folder.mkdir()
    (folder / "text.py").write_bytes(bytes(i * i * 7 % 251 for i in range(200_000)))


if __name__ == "__main__":
    main(sys.argv[1:])
