"""The held-out loss of a pipeline: forward passes alone, over every order of stages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import TrainerConfig, merge
from drumline_trainer.metrics.losses import read_losses
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import same_bits, whole_tensors

pytestmark = pytest.mark.extended(keep=3, of="numbers of ranks")

STEPS = 2
PIPELINE = {"pipeline": 2}
TWICE = {"pipeline": 2, "stages_per_rank": 2}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Of the same model on the same text."""

    gangs: GangStarter
    text: Path

    def train(self, folder: Path, *, ranks: int = 2, **changes: Any) -> Path:
        raw = {
            "model": {"layers": 4, "hidden_size": 32, "ffn_size": 64},
            "data": {
                "source": str(self.text),
                "pattern": "*.txt",
                "sequence_length": 32,
                "packing": "separate",
            },
            "evaluation": {"every_steps": 1, "samples": 8},
            "optimizer": {"learning_rate": 0.01, "warmup_steps": 1},
            "checkpoint": {"every_steps": STEPS},
            "steps": STEPS,
            "global_batch_size": 4,
            "micro_batch_size": 1,
        }
        config = TrainerConfig.from_dict(merge(raw, changes))
        self.gangs.run(train_rank, config, None, world_size=ranks, checkpoint_folder=folder)
        return folder


@pytest.fixture(scope="module")
def runs(gangs: GangStarter, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    text = tmp_path_factory.mktemp("text")
    for number in range(8):
        words = " ".join(f"{number}{n * n % 97}" for n in range(90))
        (text / f"{number}.txt").write_text(words)
    return Runs(gangs=gangs, text=text)


@pytest.fixture(scope="module")
def alone(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.train(tmp_path_factory.mktemp("alone"), ranks=1)


def evaluations(folder: Path) -> dict[int, float]:
    lines = (folder / "metrics" / "evaluations.jsonl").read_text().splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"parallelism": PIPELINE}, id="1f1b"),
        pytest.param({"parallelism": {**TWICE, "schedule": "interleaved"}}, id="interleaved"),
        pytest.param({"parallelism": {**TWICE, "schedule": "zbv"}}, id="zbv"),
    ],
)
def test_a_pipeline_measures_what_one_rank_measures(
    runs: Runs, alone: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = runs.train(tmp_path, **changes)
    assert list(evaluations(folder)) == [0, 1, 2]
    assert evaluations(folder) == pytest.approx(evaluations(alone), rel=1e-5)
    losses = (read_losses(folder / "metrics.jsonl") for folder in (alone, folder))
    assert next(losses) == pytest.approx(next(losses), rel=1e-5)


def test_measuring_the_average_in_a_pipeline_changes_no_bit_of_the_training(
    runs: Runs, tmp_path: Path
) -> None:
    """Gathered weights stay gathered there: those of the average must not be trained with."""
    layout = {**PIPELINE, "data_parallel": "fsdp"}
    decaying = {"average_decay": 0.5}
    averaged = runs.train(
        tmp_path / "averaged",
        parallelism=layout,
        optimizer=decaying,
        evaluation={"average": True},
    )
    weights = runs.train(tmp_path / "weights", parallelism=layout, optimizer=decaying)
    last = f"step-{STEPS:08d}"
    assert same_bits(whole_tensors(averaged / last), whole_tensors(weights / last))
    assert abs(evaluations(averaged)[STEPS] / evaluations(weights)[STEPS] - 1) > 1e-5
