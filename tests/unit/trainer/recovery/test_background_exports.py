"""Exports beside training: priority, cancellation, a failed one, and which ones stay."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from drumline_contract.config import CheckpointConfig, ConfigError, TrainerConfig
from drumline_trainer.recovery.background_exports import (
    EXPORTS_FOLDER,
    BackgroundExports,
    _Running,
)


def exports_of(folder: Path, lines: list[str], *, keep: int = 2) -> BackgroundExports:
    checkpoint = CheckpointConfig(export_every_steps=10, every_steps=10, export_keep=keep)
    exports = BackgroundExports.of(
        TrainerConfig(steps=100, checkpoint=checkpoint), folder=folder, print_line=lines.append
    )
    assert exports is not None
    return exports


def nothing() -> None:
    pass


def test_a_run_without_exports_has_none(tmp_path: Path) -> None:
    assert BackgroundExports.of(TrainerConfig(), folder=tmp_path, print_line=print) is None


def test_checkpoints_in_a_bucket_are_refused() -> None:
    config = TrainerConfig(checkpoint=CheckpointConfig(export_every_steps=10, every_steps=10))
    with pytest.raises(ConfigError, match="export_every_steps"):
        BackgroundExports.of(config, folder=None, print_line=print)


def test_a_cancelled_export_is_killed(tmp_path: Path) -> None:
    exports = exports_of(tmp_path, [])
    exports.committed(10, nothing)
    running = exports._running
    assert running is not None
    assert os.getpriority(os.PRIO_PROCESS, running.process.pid) == 19

    exports.cancel()

    assert running.process.returncode == -signal.SIGKILL
    assert running.log.closed


def test_an_export_that_fails_says_why_and_gives_no_folder(tmp_path: Path) -> None:
    lines: list[str] = []
    exports = exports_of(tmp_path, lines)
    exports.committed(10, nothing)
    exports.finish(nothing)

    assert "step 10 failed" in lines[0]
    assert "step-00000010" in lines[0]
    assert not (tmp_path / EXPORTS_FOLDER / "step-00000010").exists()


def test_the_newest_exports_stay(tmp_path: Path) -> None:
    lines: list[str] = []
    exports = exports_of(tmp_path, lines)
    folder = tmp_path / EXPORTS_FOLDER
    for name in ("step-00000010", "step-00000020", "step-00000005.partial"):
        (folder / name).mkdir(parents=True)
        (folder / name / "model.safetensors").touch()
    whole = folder / "step-00000030.partial"
    whole.mkdir()
    (whole / "config.json").touch()
    exports._running = _Running(
        step=30, process=subprocess.Popen(["true"]), log=(folder / "export.log").open("wb")
    )

    exports.finish(nothing)

    left = {path.name for path in folder.iterdir() if path.is_dir()}
    assert left == {"step-00000020", "step-00000030"}
    assert (folder / "step-00000030" / "config.json").exists()
    assert "step 30 is exported" in lines[0]
