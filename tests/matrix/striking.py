"""The bundled trainer as a rank module that does to itself what its cell says.

Set as `DRUMLINE_RANK_MODULE`. The trainer's code is untouched on disk: in the rank's own process a
few of its functions are wrapped, to see the moments of `strikes` come and to write a diary that
owes nothing to agents: which process trained which step of which membership, with which loss.

A strike happens once in the life of the gang, however often the rank is restarted: its marker, made
with O_EXCL in the folder of the cell, holds when and in which membership.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.assembly.parallel_model import MeanLoss
from drumline_trainer.checkpoint import folder_files as saving
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.rank import exit_code_of, serve_store
from drumline_trainer.rank import run as trainer
from tests.gloo.nccl.device import DEVICE
from tests.matrix.diary import DIARIES, PIDS, STRUCK, Entry
from tests.matrix.strikes import (
    ACKNOWLEDGED,
    BACKEND,
    FOLDER,
    MUTANT,
    STRIKES,
    Backend,
    Deed,
    Strike,
    decode,
)

__all__ = ["exit_code_of", "run_rank", "serve_store"]

FILLER = "filler"


class StruckError(RuntimeError):
    """The exception that a cell asks for."""


def run_rank(*, config: Any, placement: Placement, **connections: Any) -> None:
    """`drumline_trainer.rank.run_rank`, watched."""
    if mutant := os.environ.get(MUTANT):
        importlib.import_module(f"tests.gloo.mutants.{mutant}")
    if os.environ.get(BACKEND) == Backend.NCCL:
        importlib.import_module("tests.gloo.nccl.rank")
    folder = Path(os.environ[FOLDER])
    scene = Scene(folder=folder, placement=placement, strikes=decode(os.environ.get(STRIKES, "")))
    scene.watch()
    trainer.run_rank(config=config, placement=placement, **connections)


class Scene:
    """What this rank process has to watch for."""

    def __init__(self, *, folder: Path, placement: Placement, strikes: tuple[Strike, ...]) -> None:
        self._folder = folder
        self._rank = placement.rank
        self._membership = placement.membership
        self._placement = placement
        self._strikes = [strike for strike in strikes if strike.watcher == self._rank]
        self._step = 0
        self._poisoned = False
        name = f"rank-{self._rank}-{os.getpid()}.jsonl"
        self._diary = os.open(
            folder / DIARIES / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        (folder / PIDS / f"rank-{self._rank}").write_text(str(os.getpid()))

    def watch(self) -> None:
        """Wrap what there is to see; for the rest of this process."""
        scene = self
        _before(trainer, "join", lambda placement, **_: scene.joins(placement))
        _after(
            RunReporter, "enter", lambda reporter, phase, **_: scene.enters(reporter, str(phase))
        )
        _after(RunReporter, "done", lambda reporter: scene.enters(reporter, "done"))
        _after(RunReporter, "begin", lambda _, step, **__: scene.begins(step))
        _before(
            RunReporter,
            "finish_step",
            lambda _, step, losses, **__: scene.finishes(step, losses[step]),
        )
        _after(saving, "write_shard_file", lambda *_, **__: scene.comes_to("writing"))
        _before(CheckpointFolder, "commit", lambda *_, **__: scene.comes_to("commit"))
        plain = MeanLoss.__call__
        MeanLoss.__call__ = lambda loss, *tensors: plain(loss, *tensors) * scene.poison()

    def joins(self, placement: Placement) -> None:
        """A membership begins."""
        self._placement, self._membership = placement, placement.membership
        self._write(Entry.JOINING)
        DEVICE.mend_links()
        self._free_disk()
        self.comes_to("joining")

    def enters(self, reporter: RunReporter, phase: str) -> None:
        """The trainer has announced a phase."""
        self._step = reporter.figures.step
        if phase == "done":
            self._write(Entry.DONE)
        self.comes_to(phase)

    def begins(self, step: int) -> None:
        """Training goes on from here."""
        self._step = step
        self._write(Entry.BEGINS, step=step)

    def finishes(self, step: int, loss: Any) -> None:
        """A step is done."""
        self._step = step
        self._write(Entry.STEP, step=step, loss=float(loss).hex())

    def poison(self) -> float:
        """What this step's loss is multiplied by."""
        poisoned, self._poisoned = self._poisoned, False
        return float("nan") if poisoned else 1.0

    def comes_to(self, point: str) -> None:
        """Strike, if it is time."""
        for strike in self._strikes:
            if (
                strike.at == point
                and (strike.step is None or self._step >= strike.step)
                and self._is_after(strike.after)
                and (self._mark(strike.name) or strike.always)
            ):
                self._do(strike)

    def _is_after(self, name: str) -> bool:
        if not name:
            return True
        with suppress(OSError, ValueError):
            output = json.loads((self._folder / STRUCK / name).read_text())
            return self._membership > tuple(output["membership"])
        return False

    def _mark(self, name: str) -> bool:
        """Whether this is the first time; writes down when it was, in one write."""
        output = {"time": time.time(), "membership": self._membership, "step": self._step}
        marker = self._folder / STRUCK / name
        fresh = marker.with_name(f".{name}-{os.getpid()}")
        fresh.write_text(json.dumps({**output, "rank": self._rank, "pid": os.getpid()}))
        try:
            os.link(fresh, marker)
        except FileExistsError:
            return False
        finally:
            fresh.unlink()
        return True

    def _do(self, strike: Strike) -> None:  # noqa: C901 - a table, one case per deed
        if strike.acknowledged is not None:
            self._wait_for_operator(strike.acknowledged)
        match strike.deed:
            case Deed.SIGNAL:
                self._signal([f"rank-{rank}" for rank in strike.ranks], strike.number)
            case Deed.RAISE:
                raise StruckError(f"struck at {strike.at}")
            case Deed.ALLOCATE:
                bytearray(1 << 62)
            case Deed.EXIT:
                sys.exit(0)
            case Deed.LEAVE:
                os._exit(0)
            case Deed.SPIN:
                re.match(r"(a+)+$", "a" * 64 + "b")  # longer than anyone lives, with the GIL held
            case Deed.HANG_DEVICE:
                DEVICE.hang()
            case Deed.LOSE_LINKS:
                DEVICE.lose_links()
            case Deed.POISON:
                self._poisoned = True
            case Deed.KILL_AGENTS:
                self._signal([f"agent-{pod}" for pod in strike.pods], signal.SIGKILL)
                if self._rank // self._placement.local_world_size in strike.pods:
                    signal.pause()  # the kernel kills us with our agent: no further step before
            case Deed.KILL_PODS:
                self._signal(self._processes_of(strike.pods), signal.SIGKILL)
            case Deed.PAUSE_PODS:
                self._signal(self._processes_of(strike.pods), signal.SIGSTOP)
            case Deed.SPOIL_SNAPSHOT:
                _flip(_newest(self._placement.snapshot_folder, f"rank-{self._rank:05d}/*.snapshot"))
                self._signal([f"rank-{self._rank}"], signal.SIGKILL)
            case Deed.SPOIL_CHECKPOINT:
                _flip(_newest(self._placement.checkpoint_folder, "step-????????/*.safetensors"))
                self._signal(self._processes_of(strike.pods), signal.SIGKILL)
            case Deed.FILL_DISK:
                self._fill_disk()

    def _wait_for_operator(self, step: int) -> None:
        """Until it knows of a checkpoint of this step: what it has not heard of it cannot miss."""
        while True:
            with suppress(FileNotFoundError, ValueError):  # not there, or not written yet
                if int((self._folder / ACKNOWLEDGED).read_text()) >= step:
                    return
            time.sleep(0.01)

    def _processes_of(self, pods: tuple[int, ...]) -> list[str]:
        """Names of all processes of these pods."""
        here = [path.name for path in (self._folder / PIDS).iterdir()]
        of_pods = {str(pod) for pod in pods}
        return [name for name in here if self._pod_of(name) in of_pods]

    def _pod_of(self, name: str) -> str:
        kind, _, number = name.partition("-")
        per_pod = self._placement.local_world_size
        return str(int(number) // per_pod) if kind == "rank" else number

    def _signal(self, names: list[str], number: int) -> None:
        """To all at once, to ourselves last."""
        pids = [self._pid_of(name) for name in names]
        for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pid_of(self, name: str) -> int:
        """Of a process that may be about to begin."""
        while True:
            with suppress(FileNotFoundError, ValueError):  # not there, or not written yet
                return int((self._folder / PIDS / name).read_text())
            time.sleep(0.01)

    def _fill_disk(self) -> None:
        """Leave not one byte on the file system of the checkpoints."""
        assert self._placement.checkpoint_folder is not None
        with (self._placement.checkpoint_folder / FILLER).open("wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size >>= 1

    def _free_disk(self) -> None:
        """Somebody has made room by the time the gang meets again."""
        if self._rank == 0 and self._placement.checkpoint_folder is not None:
            (self._placement.checkpoint_folder / FILLER).unlink(missing_ok=True)

    def _write(self, entry: Entry, **figures: Any) -> None:
        line = {
            "entry": entry,
            "time": time.time(),
            "rank": self._rank,
            "pid": os.getpid(),
            "membership": self._membership,
            **figures,
        }
        os.write(self._diary, json.dumps(line).encode() + b"\n")


def _before(owner: Any, name: str, action: Callable[..., None]) -> None:
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def watched(*arguments: Any, **options: Any) -> Any:
        action(*arguments, **options)
        return plain(*arguments, **options)

    setattr(owner, name, watched)


def _after(owner: Any, name: str, action: Callable[..., None]) -> None:
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def watched(*arguments: Any, **options: Any) -> Any:
        result = plain(*arguments, **options)
        action(*arguments, **options)
        return result

    setattr(owner, name, watched)


def _newest(folder: Path | None, pattern: str) -> Path:
    assert folder is not None
    return max(folder.glob(pattern), key=lambda path: (path.parent.name, path.name))


def _flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
