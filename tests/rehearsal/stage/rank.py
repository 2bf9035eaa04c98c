"""The bundled trainer with faults on order: the rank module of the image `drumline/rehearsal`.

A job that runs this image trains as any other, with the production code. Beside its checkpoints
lies `rehearsal.json`, the plan of what shall befall it:

    {"pace_seconds": 0.02,
     "faults": [{"name": "a", "rank": 1, "phase": "backward", "finished": 20, "after": null,
                 "kind": "exception"}]}

Each fault strikes once in the life of a job, in the process of that rank, when it enters the phase
after so many finished steps (null: any number) and after another fault; `struck/<name>` then says
when. Every rank process writes itself into `processes.jsonl` when it begins, and, where the plan
has `note_samples`, which samples it uses for which step into `samples.jsonl`. With `mutant` the
trainer is given that mistake (tests/gloo/mutants). Standard library and the trainer only.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer import rank
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.parallelism.batch_shard import MicroBatch
from drumline_trainer.rank import exit_code_of, serve_store

__all__ = ["exit_code_of", "run_rank", "serve_store"]

PLAN_FILE = "rehearsal.json"
PACED_FILE = "paced"
"""While it is there, every step takes `pace_seconds` longer, or as many as it says."""
HELD_FILE = "held"
"""While it is there, rank 3 computes and does not get on."""
HELD_RANK = 3
PROCESSES_FILE = "processes.jsonl"
SAMPLES_FILE = "samples.jsonl"
STRUCK_FOLDER = "struck"
CHUNK_BYTES = 32 << 20


def run_rank(*, placement: Placement, **options: Any) -> None:
    """The trainer's own `run_rank`, with the plan at work around it."""
    folder = placement.checkpoint_folder
    if folder is not None and (folder / PLAN_FILE).exists():
        _introduce(placement, folder)
        plan = json.loads((folder / PLAN_FILE).read_text())
        if plan["mutant"] is not None:
            importlib.import_module(f"mutants.{plan['mutant']}")
        _watch(plan, folder=folder)
    rank.run_rank(placement=placement, **options)


def _introduce(placement: Placement, folder: Path) -> None:
    line = {"rank": placement.rank, "pid": os.getpid(), "pod": socket.gethostname()}
    _append(folder / PROCESSES_FILE, line, placement=placement)


def _watch(plan: dict[str, Any], *, folder: Path) -> None:
    """Have every change of phase looked at: that is where faults strike."""
    enter = RunReporter.enter
    reporters: list[RunReporter] = []

    def watched(self: RunReporter, phase: Phase, **options: Any) -> None:
        enter(self, phase, **options)
        reporters[:] = [self]
        if phase == "data":
            time.sleep(_pace(plan, folder=folder))
            while self.placement.rank == HELD_RANK and (folder / HELD_FILE).exists():
                pass  # who computes is given five times the patience of who sleeps or is stopped
        for fault in plan["faults"]:
            here = (fault["rank"], fault["phase"]) == (self.placement.rank, phase)
            if here and fault["finished"] in {None, self.figures.step}:
                _strike_once(fault, folder=folder / STRUCK_FOLDER)

    RunReporter.enter = watched
    if plan["note_samples"]:
        _note_samples(reporters, folder=folder)


def _pace(plan: dict[str, Any], *, folder: Path) -> float:
    """Seconds that a step takes longer."""
    try:
        said = (folder / PACED_FILE).read_text()
    except FileNotFoundError:
        return 0.0
    return float(said or plan["pace_seconds"])


def _note_samples(reporters: list[RunReporter], *, folder: Path) -> None:
    """Have it written down which samples are used, by whom, for which step."""
    on = MicroBatch.on

    def noted(self: MicroBatch, device: Any) -> Any:
        for reporter in reporters:
            samples = self.samples
            line = {"step": reporter.figures.step + 1, "first": samples.start, "end": samples.stop}
            _append(folder / SAMPLES_FILE, line, placement=reporter.placement)
        return on(self, device)

    MicroBatch.on = noted


def _append(file: Path, line: dict[str, Any], *, placement: Placement) -> None:
    """One line in one write: ranks of several pods share the file."""
    membership = {"generation": placement.generation, "attempt": placement.attempt}
    with file.open("a") as opened:
        opened.write(json.dumps({**line, **membership}) + "\n")


def _strike_once(fault: dict[str, Any], *, folder: Path) -> None:
    if fault["after"] is not None and not (folder / fault["after"]).exists():
        return
    try:
        with (folder / fault["name"]).open("x") as file:
            file.write(f"{time.time()}\n")
    except FileExistsError:
        return
    while fault["together"] is not None and not (folder / fault["together"]).exists():
        time.sleep(0.01)
    _KINDS[fault["kind"]]()


def _raise() -> None:
    raise RuntimeError("rehearsed: the training code raised")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _outgrow() -> None:
    """Allocate until the kernel kills this process for it."""
    held: list[bytes] = []
    while True:
        held.append(b"x" * CHUNK_BYTES)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _linger() -> None:
    """Be slow, but alive: shorter than what counts as silence."""
    time.sleep(1.5)


_KINDS: dict[str, Callable[[], None]] = {
    "exception": _raise,
    "kill": _kill,
    "segfault": _segfault,
    "memory": _outgrow,
    "stop": _stop,
    "linger": _linger,
}
