"""The average of the weights in a run: measured, saved, gone on from, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig, merge
from drumline_trainer.__main__ import main
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import same_bits, whole_tensors
from tests.gloo.tuned import tuned, write_conversations, write_tiny_llama

STEPS = 4
AVERAGED: dict[str, Any] = {
    "optimizer": {"average_decay": 0.15, "schedule": "constant"},
    "evaluation": {"every_steps": 1, "average": True},
    "checkpoint": {"every_steps": 1, "keep": STEPS},
    "steps": STEPS,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("averaged")
    return write_tiny_llama(folder / "model"), write_conversations(folder / "data")


def train(
    gangs: GangStarter, config: TrainerConfig, folder: Path, *, ranks: int = 1
) -> dict[int, float]:
    """Every evaluation."""
    gangs.run(train_rank, config, None, world_size=ranks, checkpoint_folder=folder)
    lines = (folder / "metrics" / "evaluations.jsonl").read_text().splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


@pytest.mark.extended(keep=4, of="runs of ranks")
def test_the_average_of_a_run_is_saved_measured_and_exported(
    gangs: GangStarter, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    config = tuned(*folders, **AVERAGED)
    measured = train(gangs, config, tmp_path / "run", ranks=2)
    steps = {n: tmp_path / "run" / f"step-{n:08d}" for n in range(1, STEPS + 1)}
    stored = {n: whole_tensors(folder) for n, folder in steps.items()}
    # saved: the recurrence over the weights of every step
    names = [name for name in stored[1] if name.startswith("model.")]
    for name in names:
        average = stored[1][name]
        for n in range(2, STEPS + 1):
            kept = min(0.15, (n - 1) / (n + 8))
            average = kept * average + (1 - kept) * stored[n][name]
        there = stored[STEPS][name.replace("model.", "average.", 1)]
        np.testing.assert_allclose(there, average, rtol=1e-5, atol=1e-7)
    # measured: what a run from the exported average measures before it trains
    target = tmp_path / "exported"
    assert main(["export", str(steps[STEPS]), str(target), "--average"]) == ExitCode.OK
    plain = merge(AVERAGED, {"optimizer": {"average_decay": 0.0}, "evaluation": {"average": False}})
    of_average = train(gangs, tuned(target, folders[1], **plain), tmp_path / "average")
    assert measured[STEPS] == pytest.approx(of_average[0], rel=1e-5)
    # and nothing of it changes what is trained
    of_weights = train(gangs, tuned(*folders, **plain), tmp_path / "plain", ranks=2)
    assert abs(measured[STEPS] / of_weights[STEPS] - 1) > 1e-4
    alone = whole_tensors(tmp_path / "plain" / steps[STEPS].name)
    assert same_bits({name: stored[STEPS][name] for name in alone}, alone)


@pytest.mark.extended
def test_it_goes_on_where_it_was_saved_in_any_layout(
    gangs: GangStarter, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    last = f"step-{STEPS:08d}"
    train(gangs, tuned(*folders, **AVERAGED), tmp_path / "whole")
    train(gangs, tuned(*folders, **AVERAGED | {"steps": 2}), tmp_path / "parts")
    train(gangs, tuned(*folders, **AVERAGED), tmp_path / "parts")
    whole = whole_tensors(tmp_path / "whole" / last)
    assert same_bits(whole_tensors(tmp_path / "parts" / last), whole)
    zero = merge(AVERAGED, {"parallelism": {"data_parallel": "zero1"}})
    train(gangs, tuned(*folders, **AVERAGED | {"steps": 2}), tmp_path / "other")
    train(gangs, tuned(*folders, **zero), tmp_path / "other", ranks=2)
    other = whole_tensors(tmp_path / "other" / last)
    assert other.keys() == whole.keys()
    for name in (name for name in whole if name.startswith("average.")):
        apart = np.linalg.norm(other[name] - whole[name])  # Adam makes much of a rounding or two
        assert apart <= 1e-2 * np.linalg.norm(whole[name]), name
