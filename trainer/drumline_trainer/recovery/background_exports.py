"""Exports of committed checkpoints in Hugging Face's format, while training continues.

Rank 0 starts the command `export` as a process of its own, at the lowest priority and without a
GPU. Its folder gets its name once the export is complete, so `exports/step-00000100`
is always a whole model. One export runs at a time. A failed one is reported and ends no run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from drumline_contract.config import ConfigError, Precision, TrainerConfig

EXPORTS_FOLDER: Final = "exports"
_PARTIAL: Final = ".partial"
_LOG_FILE: Final = "export.log"
_TYPES: Final = {
    Precision.FP32: "float32",
    Precision.BF16: "bfloat16",
    Precision.FP16: "float16",
}
_LOWEST_PRIORITY: Final = 19
_POLL_SECONDS: Final = 0.2
_SHOWN_BYTES: Final = 400


def _name(step: int) -> str:
    """Return the name of a step's folder, as checkpoints are named."""
    return f"step-{step:08d}"


@dataclass(slots=True, kw_only=True)
class _Running:
    step: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]


@dataclass(slots=True, kw_only=True)
class BackgroundExports:
    """The exports of one run, on rank 0."""

    every_steps: int
    keep: int
    dtype: str
    folder: Path
    """Folder of the checkpoints."""
    last_step: int
    print_line: Callable[[str], None]
    _running: _Running | None = field(default=None, init=False)

    @classmethod
    def of(
        cls, config: TrainerConfig, *, folder: Path | None, print_line: Callable[[str], None]
    ) -> BackgroundExports | None:
        """Return None where the run asks for no exports.

        Args:
            config: the run's configuration.
            folder: folder of the checkpoints. None: a bucket.
            print_line: prints progress.

        Raises:
            ConfigError: its checkpoints are in no folder.
        """
        wanted = config.checkpoint
        if wanted.export_every_steps is None:
            return None
        if folder is None:
            raise ConfigError(
                "checkpoint.export_every_steps: needs checkpoints in a folder; those in a bucket"
                " are exported with the command export"
            )
        return cls(
            every_steps=wanted.export_every_steps,
            keep=wanted.export_keep,
            dtype=_TYPES[config.precision],
            folder=folder,
            last_step=config.steps,
            print_line=print_line,
        )

    def committed(self, step: int, progress: Callable[[], None]) -> None:
        """Export the checkpoint of this step if it is due.

        Returns at once, but for the last step: that one waits for an export under way and calls
        `progress` meanwhile.
        """
        self._report()
        if step % self.every_steps and step != self.last_step:
            return
        if self._running is not None and step != self.last_step:
            self.print_line(
                f"step {step} is not exported: the export of step {self._running.step} still runs;"
                " checkpoint.export_every_steps may be too small"
            )
            return
        self._wait(progress)
        self._start(step)

    def finish(self, progress: Callable[[], None]) -> None:
        """Wait for the export under way. `progress` is called meanwhile."""
        self._wait(progress)

    def cancel(self) -> None:
        """End the export under way: what it has written is continued by the next one."""
        if self._running is not None:
            self._running.process.kill()
            self._running.process.wait()
            self._running.log.close()
            self._running = None

    def _start(self, step: int) -> None:
        exports = self.folder / EXPORTS_FOLDER
        try:
            exports.mkdir(exist_ok=True)
            log = (exports / _LOG_FILE).open("wb")
        except OSError as error:
            self.print_line(f"step {step} is not exported: {error}")
            return
        name = _name(step)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "drumline_trainer", "export", "--dtype", self.dtype),
                *(str(self.folder / name), str(exports / (name + _PARTIAL))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
        self._running = _Running(step=step, process=process, log=log)

    def _wait(self, progress: Callable[[], None]) -> None:
        while self._runs():
            progress()
            time.sleep(_POLL_SECONDS)

    def _runs(self) -> bool:
        """Return whether an export is under way; report one that has ended."""
        self._report()
        return self._running is not None

    def _report(self) -> None:
        """Give an export that has ended its name, or say why it failed."""
        running = self._running
        if running is None or running.process.poll() is None:
            return
        self._running = None
        running.log.close()
        exports, name = self.folder / EXPORTS_FOLDER, _name(running.step)
        if running.process.returncode:
            text = (exports / _LOG_FILE).read_bytes()[-_SHOWN_BYTES:].decode(errors="replace")
            shown = " ".join(text.split())
            self.print_line(f"the export of step {running.step} failed: {shown}")
            return
        try:
            shutil.rmtree(exports / name, ignore_errors=True)
            (exports / (name + _PARTIAL)).rename(exports / name)
            self._prune()
        except OSError as error:
            self.print_line(f"the export of step {running.step} failed: {error}")
            return
        self.print_line(f"step {running.step} is exported: {exports / name}")

    def _prune(self) -> None:
        """Keep the newest ones, and no partial one of another step."""
        exports = self.folder / EXPORTS_FOLDER
        whole = sorted(
            path for path in exports.iterdir() if path.is_dir() and path.suffix != _PARTIAL
        )
        partial = [path for path in exports.iterdir() if path.suffix == _PARTIAL]
        for path in (*whole[: -self.keep], *partial):
            shutil.rmtree(path, ignore_errors=True)
