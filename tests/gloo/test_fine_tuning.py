"""A pretrained model learns what the assistant says, and the loss held out says so."""

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
from tests.gloo.tuned import STEPS, tuned, write_conversations, write_tiny_llama

pytestmark = pytest.mark.extended(keep=1)

SHORT = {"steps": 2, "evaluation": {"every_steps": 1}, "checkpoint": {"every_steps": 2}}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Of the same model on the same data."""

    gangs: GangStarter
    model: Path
    data: Path

    def config(self, **changes: Any) -> TrainerConfig:
        return tuned(self.model, self.data, **changes)

    def train(self, folder: Path, *, ranks: int = 1, **changes: Any) -> Path:
        asked = {"world_size": ranks, "checkpoint_folder": folder}
        self.gangs.run(train_rank, self.config(**changes), None, **asked)
        return folder


@pytest.fixture(scope="module")
def runs(gangs: GangStarter, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("tuned")
    return Runs(
        gangs=gangs,
        model=write_tiny_llama(folder / "model"),
        data=write_conversations(folder / "data"),
    )


@pytest.fixture(scope="module")
def alone(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.train(tmp_path_factory.mktemp("alone"), **SHORT)


def evaluations(folder: Path) -> dict[int, float]:
    lines = (folder / "metrics" / "evaluations.jsonl").read_text().splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


def test_fine_tuning_lowers_the_held_out_loss(runs: Runs, tmp_path: Path) -> None:
    measured = evaluations(runs.train(tmp_path, ranks=2))  # a thread each
    assert list(measured) == [0, STEPS // 2, STEPS]
    assert measured[0] > 5  # a random model knows nothing: ln 320 = 5.8
    assert measured[STEPS] < measured[STEPS // 2] < 0.7 * measured[0]


def test_measuring_changes_no_bit(runs: Runs, alone: Path, tmp_path: Path) -> None:
    runs.train(tmp_path, **SHORT | {"evaluation": None})
    last = "step-00000002"
    assert same_bits(whole_tensors(tmp_path / last), whole_tensors(alone / last))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"parallelism": {"tensor": 2}, "micro_batch_size": 2}, id="tensor"),
        pytest.param({"parallelism": {"context": 2}}, id="context"),
        pytest.param({"micro_batch_size": 1}, id="fsdp"),
    ],
)
def test_every_layout_measures_and_learns_the_same(
    runs: Runs, alone: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    runs.train(tmp_path, ranks=2, **merge(SHORT, changes))
    assert evaluations(tmp_path) == pytest.approx(evaluations(alone), rel=1e-5)
    losses = (read_losses(folder / "metrics.jsonl") for folder in (alone, tmp_path))
    assert next(losses) == pytest.approx(next(losses), rel=1e-5)
