"""From the start of a process to its first step, and what importing costs of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "operator", ROOT / "trainer", ROOT))),
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
IMPORTS = {
    "torch alone": "torch",
    "torch and its compiler": "torch, torch._dynamo",
    "ours, one rank, ddp, zero, tp": "drumline_trainer.launch.local",
    "ours, fsdp": (
        "drumline_trainer.launch.local, drumline_trainer.parallelism.data_parallel.fsdp"
        ", torch._dynamo"
    ),
    "ours, pipeline": (
        "drumline_trainer.launch.local, drumline_trainer.parallelism.pipeline_parallel.pipeline"
        ", torch._dynamo"
    ),
}
"""By layout, what a fresh interpreter imports before its first step."""
STARTS = (("ddp", 1, "hand"), ("ddp", 2, "hand"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp"))
"""Our layout, its ranks, and what `trainer_bare` does beside it."""
BARE = {
    "hand": "bare script with the same torch imports",
    "ddp": "bare script with DDP and AdamW",
    "fsdp": "bare script with FSDP2 and AdamW",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds to the first step, each start in turn with one of the bare script."""

    ours: list[float]
    bare: list[float]

    @property
    def ratio(self) -> float:
        """How much longer ours takes, 1 for as long."""
        return median(self.ours) / median(self.bare)


def import_seconds(modules: str, *, times: int) -> float:
    """Of a fresh interpreter; the least of some, once the page cache is warm."""
    return min(_seconds(sys.executable, "-c", f"import {modules}") for _ in range(times))


def start(layout: str, ranks: int, bare_layout: str, *, text: Path, times: int) -> Start:
    """Start both in turns."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(times):
        bare.append(
            _seconds(
                *(sys.executable, "-m", "tools.bench.trainer_bare"),
                *(bare_layout, str(ranks), str(text / "text.py")),
            )
        )
        ours.append(
            _seconds(sys.executable, "-m", "drumline_trainer", *_words(layout, ranks, text))
        )
    return Start(ours=ours, bare=bare)


def _words(layout: str, ranks: int, text: Path) -> list[str]:
    settings = [
        "steps=1",
        "log_every_steps=1",
        f"data.source={text}",
        f"parallelism.data_parallel={layout}",
        "model.tied_embeddings=false",
    ]
    return ["--ranks", str(ranks), *(word for setting in settings for word in ("--set", setting))]


def _seconds(*command: str) -> float:
    """Until it says that a step is done, or has ended."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seconds = None
    for line in process.stdout:
        if line.startswith("step 1"):
            seconds = time.perf_counter() - began
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} failed")
    return time.perf_counter() - began if seconds is None else seconds
