"""A run whose held-out loss no longer falls ends, and keeps the checkpoint of the lowest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from drumline_trainer.metrics.sinks import EVALUATIONS_FILE
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import same_bits, trainer_state, whole_tensors

PATIENCE, LEAST_GAIN = 2, 0.08
STOPPING: dict[str, Any] = {
    "evaluation": {
        "every_steps": 1,
        "share": 0.2,
        "patience": PATIENCE,
        "least_gain": LEAST_GAIN,
    },
    "optimizer": {"schedule": "constant", "learning_rate": 0.2},
    "checkpoint": {"every_steps": 1000, "keep": 1},
    "steps": 200,
}


@pytest.mark.extended(keep=4, of="runs of ranks")
def test_a_run_ends_where_the_loss_no_longer_falls_killed_or_not(
    gangs: GangStarter, tmp_path: Path
) -> None:
    config = small(tmp_path / "text", **STOPPING)

    def train(run: Path, *, ranks: int) -> Path:
        gangs.run(train_rank, config, None, world_size=ranks, checkpoint_folder=run)
        return run

    whole = train(tmp_path / "whole", ranks=2)
    losses = _held_out(whole)
    best, last = _expected_end(losses)
    assert 0 < best < last == max(losses) < config.steps
    stored = [f"step-{step:08d}" for step in (best, last)]
    assert _steps(whole) == stored
    state = trainer_state(whole / stored[1])
    assert (state["kept_step"], state["best"]["in_vain"]) == (best, PATIENCE)  # type: ignore[index]

    # had it been killed after the best step, it would end there too; one that has ended goes not on
    killed = tmp_path / "killed"
    shutil.copytree(whole / stored[0], killed / stored[0])
    for ranks in (2, 1):
        assert _steps(train(killed, ranks=ranks)) == stored
    assert same_bits(whole_tensors(killed / stored[1]), whole_tensors(whole / stored[1]))


def _held_out(run: Path) -> dict[int, float]:
    lines = (run / "metrics" / EVALUATIONS_FILE).read_text().splitlines()
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def _expected_end(losses: dict[int, float]) -> tuple[int, int]:
    """The best step, and the last, from the rule as the documentation has it."""
    lowest, best = losses[0], 0
    for step, loss in losses.items():
        if loss < lowest - LEAST_GAIN:
            lowest, best = loss, step
        if step - best == PATIENCE:
            return best, step
    raise AssertionError(losses)


def _steps(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("step-*"))
