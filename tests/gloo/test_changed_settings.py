"""What changes the loss of the next step is said when a run goes on, and nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config.saved import WITHOUT_INFLUENCE
from drumline_trainer.metrics.losses import read_losses
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank

SAVED = 8
ALTERED: dict[str, dict[str, Any]] = {
    "steps": {"steps": 24},
    "steps, at a constant rate": {"steps": 24, "optimizer": {"schedule": "constant"}},
    "epochs": {"epochs": 2.0},
    "micro_batch_size": {"micro_batch_size": 2},
    "log_every_steps": {"log_every_steps": 1},
    "heartbeat_seconds": {"heartbeat_seconds": 1.0},
    "deterministic": {"deterministic": False},
    "checkpoint": {"checkpoint": {"every_steps": 3, "keep": 4}},
    "memory": {"memory": {"recompute": "full"}},
    "metrics": {"metrics": {"log_ranks": "all"}},
    "profile": {"profile": {"steps": 1}},
    "data.cache_bytes": {"data": {"cache_bytes": 1 << 20}},
    "learning rate": {"optimizer": {"learning_rate": 0.1}},
    "schedule": {"optimizer": {"schedule": "linear"}},
    "warm-up": {"optimizer": {"warmup_steps": 8}},
    "decay": {"optimizer": {"weight_decay": 0.5}},
    "batch": {"global_batch_size": 8},
    "batch, with a rate that follows": {
        "global_batch_size": 8,
        "optimizer": {"reference_batch_size": 4},
    },
    "seed": {"seed": 3},
    "dropout": {"model": {"dropout": 0.3}},
    "sequence length": {"data": {"sequence_length": 8}},
    "precision": {"precision": "bf16"},
}
ROUNDED = {"micro_batch_size"}
"""Sums in another order."""


@pytest.fixture(scope="module")
def saved(gangs: GangStarter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run, and its checkpoint of the step that others go on from."""
    folder = tmp_path_factory.mktemp("saved")
    config = small(folder / "text", steps=12)
    gangs.run(train_rank, config, None, world_size=1, checkpoint_folder=folder / "run")
    return folder


@pytest.mark.extended(keep=4, of="runs of ranks")
@pytest.mark.parametrize("name", ALTERED)
def test_what_changes_the_losses_is_said(
    gangs: GangStarter, saved: Path, tmp_path: Path, name: str
) -> None:
    step = f"step-{SAVED:08d}"
    shutil.copytree(saved / "run" / step, tmp_path / "run" / step)
    # the first update changes the loss of the step after
    change = {"steps": 12, **ALTERED[name]}
    config = small(saved / "text", **change)
    (lines,) = gangs.run(train_rank, config, None, world_size=1, checkpoint_folder=tmp_path / "run")
    before, after = (read_losses(run / "run" / "metrics.jsonl") for run in (saved, tmp_path))
    same = [before[number] == after[number] for number in (SAVED + 1, SAVED + 2)]
    is_said = any(
        "other settings than the checkpoint's" in line or "the learning rate of step" in line
        for line in lines
    )
    if name in ROUNDED:
        assert after[SAVED + 2] == pytest.approx(before[SAVED + 2], rel=1e-5)
        assert not is_said
        return
    assert is_said is not all(same)
    if name in WITHOUT_INFLUENCE - {"steps", "epochs"}:
        assert not is_said
