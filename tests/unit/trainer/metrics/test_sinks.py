from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.step_figures.step_record import Rewards, Staleness, StepRecord
from drumline_trainer.metrics.sinks import check_packages, open_sinks

ROOT = Path(__file__).parents[4]


def record(step: int, **changed: Any) -> StepRecord:
    return StepRecord(
        **{
            "step": step,
            "loss": 2.5,
            "learning_rate": 1e-3,
            "gradient_norm": 0.5,
            "tokens_per_second": 1000.0,
            "step_seconds": 0.25,
            "mfu": None,
            "skipped_steps": 1,
            "parts": {"forward": 0.125, "all_reduce/dp": 0.125},
            "memory": {"weights": 400, "peak": 1000},
            "bound": "network",
            "verdict": "network-bound: 50% of a step",
            **changed,
        }
    )


def configured(**metrics: Any) -> TrainerConfig:
    return TrainerConfig.from_dict({"metrics": metrics})


def test_staleness_is_a_figure_where_there_is_any() -> None:
    stale = record(10, staleness=Staleness(mean=2.5, most=5, steps_ahead=1))
    assert stale.to_dict()["staleness"] == {"mean": 2.5, "most": 5, "steps_ahead": 1}
    figures = dict(stale.scalars())
    assert (figures["staleness/mean"], figures["staleness/most"]) == (2.5, 5.0)
    assert not any(name.startswith("staleness") for name, _ in record(10).scalars())


def test_rewards_are_figures_by_the_names_of_trl() -> None:
    rewarded = record(10, rewards=Rewards.of((-0.25, -0.75, 0.875)))
    assert rewarded.to_dict()["rewards"] == {"chosen": -0.25, "rejected": -0.75, "accuracy": 0.875}
    figures = {name: value for name, value in rewarded.scalars() if name.startswith("rewards/")}
    assert figures == {
        "rewards/chosen": -0.25,
        "rewards/rejected": -0.75,
        "rewards/margins": 0.5,
        "rewards/accuracies": 0.875,
    }
    assert not any(name.startswith("rewards") for name, _ in record(10).scalars())


def test_json_lines_say_everything_and_are_appended_to(tmp_path: Path) -> None:
    for step in (10, 20):
        (sink,) = open_sinks(configured(), folder=tmp_path / "metrics")
        sink.write(record(step, loss=float("nan")))
        sink.close()
    lines = (tmp_path / "metrics" / "steps.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["step"], second["step"]) == (10, 20)
    assert first["loss"] is None
    assert first["mfu_formula"].startswith("tokens/s per device x (6 x weights")
    assert first["parts"] == {"forward": 0.125, "all_reduce/dp": 0.125}
    assert first["memory"] == {"weights": 400, "peak": 1000}
    assert first.keys() >= {
        "learning_rate",
        "gradient_norm",
        "tokens_per_second",
        "step_seconds",
        "mfu",
        "skipped_steps",
        "bound",
        "verdict",
    }


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    sinks = open_sinks(configured(tensorboard=True, json_lines=False), folder=tmp_path)
    for step in (10, 20):
        sinks[0].write(record(step, loss=step / 10))
    sinks[0].close()
    accumulators = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    read = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(scalar.step, scalar.value) for scalar in read.Scalars("train/loss")] == [
        (10, 1.0),
        (20, 2.0),
    ]
    assert read.Scalars("step_seconds/all_reduce/dp")[0].value == 0.125
    assert "speed/mfu" not in read.Tags()["scalars"]


def test_files_need_a_folder() -> None:
    assert open_sinks(configured(), folder=None) == []
    with pytest.raises(ConfigError, match=r"metrics\.folder"):
        open_sinks(configured(tensorboard=True), folder=None)


def test_a_folder_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"metrics\.folder: .*Not a directory"):
        open_sinks(configured(wandb=True), folder=tmp_path / "file" / "x")


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_with_the_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=f"{name} is not installed.*trainer-more"):
        open_sinks(configured(**{name: True}), folder=tmp_path)


def test_wandb_writes_an_offline_run_without_a_login_or_a_secret(tmp_path: Path) -> None:
    secret = "0123456789abcdef" * 2 + "01234567"
    script = (
        "import sys; from pathlib import Path;"
        "from drumline_trainer.metrics.sinks import open_sinks;"
        "from tests.unit.trainer.metrics.test_sinks import configured, record;"
        "sinks = open_sinks(configured(wandb=True, json_lines=False), folder=Path(sys.argv[1]));"
        "sinks[0].write(record(10)); sinks[0].close()"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "operator", "trainer")),
        "WANDB_API_KEY": secret,
    }
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "metrics")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "metrics" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"step_seconds/all_reduce/dp" in run.read_bytes()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if secret.encode() in path.read_bytes()]


def test_an_online_run_needs_the_key_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(wandb=True, wandb_online=True)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"metrics\.wandb_online: .*WANDB_API_KEY"):
        check_packages(config)
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    check_packages(config)
    assert "secret" not in str(config.to_dict())
    with pytest.raises(ConfigError, match=r"metrics\.wandb_online: .*metrics\.wandb"):
        configured(wandb_online=True)
