"""Runs a rehearsal of a planned layout in the bundled trainer, as a process of its own.

The command line never imports torch: `python -m drumline_trainer rehearse` decides by the machine
what the smallest slice is, trains it, and writes what it held; here it is read and compared.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from drumline_cli.errors import BadInput, NotAnswered
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.plain_text import plain
from drumline_planner.correction import MemoryCorrection
from drumline_planner.rehearsal import (
    ComparedPart,
    RehearsedSlice,
    SliceMeasurement,
    comparisons,
    correction_of,
)
from drumline_planner.search import Planned

_SECONDS: Final = 900
"""A slice takes seconds on GPUs and a minute on processors; a machine may be busy."""
_MOST_BYTES: Final = 1 << 20
_TAIL: Final = 400
"""Characters of what the trainer said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Result of a rehearsal, and its correction of the memory estimate."""

    rehearsed: RehearsedSlice
    gpu: str
    """GPU of this machine. Empty: CPUs."""
    parts: tuple[ComparedPart, ...]
    correction: MemoryCorrection
    step_seconds: float


def rehearse(planned: Planned) -> Rehearsal:
    """Rehearse a layout on this machine.

    Raises:
        BadInput: no trainer is installed here, or there is no slice of the layout for this machine.
        NotAnswered: the slice failed, or took too long.
    """
    # Check first, because starting a process for an error message is slow.
    if not _torch_is_installed():
        raise BadInput(
            "--rehearse trains a slice of the model with the bundled trainer, but torch is not"
            " installed here; run the command in the trainer's image, or remove --rehearse"
        )
    with TemporaryDirectory(prefix="drumline-plan-") as folder:
        config, result = Path(folder, "config.json"), Path(folder, "rehearsal.json")
        config.write_text(json.dumps(planned.config.written()))
        ranks = planned.layout.world_size
        # The trainer chooses the slice by the devices of this machine.
        _trainer("--config", str(config), "--of-ranks", str(ranks), "--out", str(result))
        # The file is the output of another process, so its size is bounded.
        if result.stat().st_size > _MOST_BYTES:
            raise NotAnswered("--rehearse: the trainer wrote more than 1 MiB")
        raw = cast("Mapping[str, Any]", json.loads(result.read_text()))
    try:
        return read_rehearsal(raw)
    except ConfigError as error:
        raise NotAnswered(f"--rehearse: {error}") from None


def read_rehearsal(raw: Mapping[str, Any]) -> Rehearsal:
    """Compare the trainer's output with the prediction.

    Raises:
        ConfigError: the slice held something else entirely.
    """
    sliced = raw["slice"]
    rehearsed = RehearsedSlice(
        config=TrainerConfig.from_dict(sliced["config"]),
        ranks=int(sliced["ranks"]),
        smaller=tuple(plain(str(each)) for each in sliced["smaller"]),
    )
    measured = SliceMeasurement(**raw["measured"])
    parts = comparisons(rehearsed, measured)
    return Rehearsal(
        rehearsed=rehearsed,
        gpu=plain(measured.gpu),
        parts=parts,
        correction=correction_of(parts),
        step_seconds=measured.step_seconds,
    )


def _torch_is_installed() -> bool:
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # blocked in this process
        return False


def _trainer(*arguments: str) -> None:
    """Run the trainer's command to its end; its ranks end with it."""
    command = [sys.executable, "-m", "drumline_trainer", "rehearse", *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # A session of its own, so that all ranks can be killed together.
        start_new_session=True,
        # the folder that it runs in may be a stranger's: its modules are not imported
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    try:
        _, said = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotAnswered(
            f"--rehearse: the slice did not end within {_SECONDS} seconds and was stopped"
        ) from None
    finally:
        if process.poll() is None:  # also where the user has interrupted it
            # The ranks are children of the trainer, so the whole group is killed.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        why = plain(said.strip()[-_TAIL:]) or f"exit code {process.returncode}"
        raise NotAnswered(f"--rehearse: the slice failed: {why}")
