"""Sinks of step records: console, JSON lines, TensorBoard, W&B. Only rank 0 opens them.

Optional packages are imported when configured. All sinks write files; only W&B uses the network,
and only where `metrics.wandb_online` asks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import secrets
from pathlib import Path
from typing import Any, Protocol, TextIO

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.step_figures.step_record import StepRecord
from drumline_trainer.metrics.evaluation_record import EvaluationRecord

STEPS_FILE = "steps.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
_KEY_VARIABLE, _RUN_ID_FILE = "WANDB_API_KEY", "drumline-run-id"
_LOGIN_SECONDS = 60


class Sink(Protocol):
    """Receives the records of one run in the order of their steps."""

    def write(self, record: StepRecord | EvaluationRecord) -> None:
        """Write a record."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


class JsonLines:
    """A line per record. A resumed run appends; of two lines of a step the later counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, record: StepRecord | EvaluationRecord) -> None:
        """Write a line at once, so that readers see it whole; the first makes the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = STEPS_FILE if isinstance(record, StepRecord) else EVALUATIONS_FILE
        # One write call per line in append mode: concurrent readers see whole lines only.
        with (self._folder / name).open("ab") as file:
            file.write(json.dumps(record.to_dict()).encode() + b"\n")

    def close(self) -> None:
        """Do nothing: every line is written already."""


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        # The import takes seconds and the package is optional, so it happens here.
        writers = importlib.import_module("torch.utils.tensorboard")
        self._writer = writers.SummaryWriter(log_dir=str(folder))

    def write(self, record: StepRecord | EvaluationRecord) -> None:
        """Write a scalar per figure."""
        for name, value in record.scalars():
            self._writer.add_scalar(name, value, record.step)
        # Flush each time: a killed run keeps its last record.
        self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class Wandb:
    """A run of W&B, offline unless the run asks for a server: no code, no details of the host.

    Online it logs in by the variable WANDB_API_KEY, at WANDB_BASE_URL or W&B's own address. A run
    that continues keeps its curves: its id stands in the folder.

    Raises:
        ConfigError: W&B is not installed or rejects the settings.
    """

    def __init__(self, folder: Path, *, config: TrainerConfig) -> None:
        wandb = importlib.import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        # Phase 1: settings that keep code, Git state and host details on this machine.
        online = config.metrics.wandb_online
        settings = wandb.Settings(
            mode="online" if online else "offline",
            init_timeout=_LOGIN_SECONDS,
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            host="",
        )
        # Phase 2: an offline run needs no id, since W&B joins runs only on the server.
        kept: dict[str, Any] = {"id": _run_id(folder), "resume": "allow"} if online else {}
        try:
            self._run: Any = wandb.init(
                project=config.metrics.wandb_project,
                dir=str(folder),
                config=config.to_dict(),
                settings=settings,
                **kept,
            )
        # Phase 3: online, every failure is a setting of the user. W&B raises many types.
        except Exception as error:
            if not online:
                raise
            raise ConfigError(
                # Server messages can be long, so 200 characters bound the error.
                f"metrics.wandb_online: W&B does not take the run ({type(error).__name__}:"
                f" {str(error)[:200]}); check WANDB_API_KEY and WANDB_BASE_URL, or leave it out"
            ) from error

    def write(self, record: StepRecord | EvaluationRecord) -> None:
        """Write a row per record."""
        self._run.log(dict(record.scalars()), step=record.step)

    def close(self) -> None:
        """Finish the run's files."""
        self._run.finish()


def _run_id(folder: Path) -> str:
    """Return the id of the folder's run, made once."""
    file = folder / _RUN_ID_FILE
    if not file.exists():
        # A random id: two runs in different folders must not share a curve.
        file.write_text(secrets.token_hex(8))
    return file.read_text().strip()


def open_sinks(config: TrainerConfig, *, folder: Path | None) -> list[Sink]:
    """Open the configured sinks, so that a missing package is an error at the start.

    Raises:
        ConfigError: a package is missing, or a folder for the files.
    """
    check_packages(config)
    wanted = config.metrics
    # Phase 1: without a folder, only sinks that need one are an error.
    if folder is None:
        if wanted.tensorboard or wanted.wandb:
            raise ConfigError(
                "metrics.folder: TensorBoard and W&B need one, or a checkpoint folder"
            )
        return []
    # Phase 2: open in this order. The first failure ends the start.
    sinks: list[Sink] = []
    if wanted.json_lines:
        sinks.append(JsonLines(folder))
    try:
        if wanted.tensorboard:
            sinks.append(TensorBoard(folder / "tensorboard"))
        if wanted.wandb:
            sinks.append(Wandb(folder, config=config))
    except OSError as error:
        raise ConfigError(f"metrics.folder: {error}") from error
    return sinks


def check_packages(config: TrainerConfig) -> None:
    """Check on every rank, so that all fail alike; imports nothing.

    Raises:
        ConfigError: a package is missing, or the key of a server.
    """
    wanted = {"tensorboard": config.metrics.tensorboard, "wandb": config.metrics.wandb}
    for name, asked in wanted.items():
        if asked and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"metrics.{name}: package {name} is not installed; it comes with the extra"
                " trainer-more"
            )
    if config.metrics.wandb_online and not os.environ.get(_KEY_VARIABLE):
        raise ConfigError(
            f"metrics.wandb_online: the variable {_KEY_VARIABLE} is not set; load it from a Secret"
            " (env or envFrom of the job), or leave wandb_online out"
        )


_BACK, _CLEAR = "\r", "\x1b[K"


class Console:
    """The console of one rank.

    Args:
        stream: standard output, usually.
        prefix: before every line, such as `[rank 3] `; lines of several ranks share a terminal, so
            with a prefix no line is replaced.
    """

    def __init__(self, stream: TextIO, *, prefix: str = "") -> None:
        self._stream = stream
        self._prefix = prefix
        self._in_place = stream.isatty() and not prefix
        self._open = False
        """The cursor is at the end of a progress line."""

    def line(self, text: str) -> None:
        """Print a line that stays."""
        before, self._open = "\n" if self._open else "", False
        self._write(f"{before}{self._prefix}{text}\n")

    def progress(self, text: str) -> None:
        """Print a line that the next progress line replaces, on a terminal."""
        if not self._in_place:
            self.line(text)
            return
        self._open = True
        self._write(f"{_BACK}{text}{_CLEAR}")

    def close(self) -> None:
        """End an open progress line."""
        if self._open:
            self._open = False
            self._write("\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
