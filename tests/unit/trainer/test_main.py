from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drumline_contract import ExitCode
from drumline_contract.config import MODEL_PRESETS, ConfigError, TrainerConfig
from drumline_trainer.__main__ import configured, main, started_as
from drumline_trainer.launch.launchers import detect_launcher


def test_settings_lie_over_the_preset_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"steps": 7, "seed": 3, "model": {"layers": 9, "heads": 8}}')
    settings = ["seed=4", "model.layers=3", "data.source=/text", "precision=bf16"]
    config = configured(file, preset="small", settings=settings)
    expected = TrainerConfig(model=MODEL_PRESETS["small"]).to_dict()
    expected["model"]["layers"] = 3
    expected |= {"steps": 7, "seed": 4, "precision": "bf16"}
    expected["data"]["source"] = "/text"
    assert config == TrainerConfig.from_dict(expected)


def test_without_anything_it_is_the_default() -> None:
    assert configured(None, preset=None, settings=[]) == TrainerConfig()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps", "must be key=value"),
        ("stepz=3", "did you mean 'steps'"),
        ("steps=many", "steps: must be int"),
        ("optimizer.beta2=1", "optimizer.beta2: must be at least 0 and below 1"),
        ("optimizer.weight_decay=-0.1", "optimizer.weight_decay: must not be negative"),
        ("optimizer.min_learning_rate_ratio=2", "must be between 0 and 1"),
        ("model.rope_theta=0", "model.rope_theta: must be greater than 0"),
        ("data.pattern=/etc/*", "data.pattern: must be a pattern of file names"),
        ("data.pattern=../*", "data.pattern: must be a pattern of file names"),
        ('data.pattern=""', "data.pattern: must be a pattern of file names"),
    ],
)
def test_a_bad_setting_says_what_is_wrong(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(None, preset=None, settings=[setting])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "/absent.json"], "/absent.json"),
        (["--ranks", "3"], "does not split evenly over 3 ranks"),
        (["--ranks", "0"], "ranks: must be at least 1, not 0"),
        (["train", "--ranks", "0"], "ranks: must be at least 1, not 0"),
        (["--set", "parallelism.tensor=2", "--ranks", "3"], "3 ranks do not divide by 2"),
        (["--metrics-file", "/absent/losses"], "--metrics-file: /absent is not a folder"),
    ],
)
def test_what_cannot_work_ends_before_torch_is_imported(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.CONFIG
    assert message in capsys.readouterr().err


def test_ranks_are_counted_by_the_launcher_or_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (started_as(None), started_as(4)) == (1, 4)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert started_as(4) == 4  # one process, as in an interactive job
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setenv("MASTER_ADDR", "node1")
    assert started_as(None) == started_as(8) == detect_launcher(os.environ)
    with pytest.raises(ConfigError, match=r"--ranks.*4.*MPI.*8"):
        started_as(4)


def test_a_process_ends_with_its_output_and_without_the_interpreters_clean_up() -> None:
    """Which would end threads that are inside of torch, and abort some runs whose work is done."""
    program = (
        "import atexit, runpy, sys; atexit.register(print, 'cleaned up');"
        " sys.argv = ['drumline_trainer', *sys.argv[1:]];"
        " runpy.run_module('drumline_trainer', run_name='__main__')"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("config", "--set", "steps=7")
    assert (done.returncode, json.loads(done.stdout)["steps"], done.stderr) == (0, 7, "")
    refused = run("config", "--set", "steps=0")
    assert (refused.returncode, refused.stdout) == (ExitCode.CONFIG, "")
    assert "steps" in refused.stderr
