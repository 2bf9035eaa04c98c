"""A model learns which answer is preferred, in every kind of data parallelism alike."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import merge
from drumline_trainer.metrics.losses import read_losses
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import same_bits, whole_tensors
from tests.gloo.tuned import tuned, write_tiny_llama
from tests.unit.trainer.data.records.conversations import preferences, write_lines

pytestmark = pytest.mark.extended(keep=4, of="runs of ranks")

STEPS = 12
PREFERRING: dict[str, Any] = {
    "dpo": {"beta": 0.5},
    "lora": {"rank": 4},
    "evaluation": None,
    "optimizer": {"learning_rate": 0.002, "schedule": "constant"},
    "checkpoint": {"every_steps": STEPS // 2},
    "data": {"sequence_length": 160},
    "steps": STEPS,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("preferences")
    write_lines(folder / "data" / "train.jsonl", preferences())
    return write_tiny_llama(folder / "model"), folder / "data"


def train(
    gangs: GangStarter,
    folders: tuple[Path, Path],
    folder: Path,
    *,
    ranks: int = 1,
    **changes: Any,
) -> list[float]:
    """Every loss."""
    config = tuned(*folders, **merge(PREFERRING, changes))
    gangs.run(train_rank, config, None, world_size=ranks, checkpoint_folder=folder)
    return list(read_losses(folder / "metrics.jsonl").values())


@pytest.mark.parametrize("lora", [{"rank": 4}, None], ids=["adapters", "all learns"])
def test_the_preferred_answer_gains_and_a_resume_leaves_no_trace(
    gangs: GangStarter, folders: tuple[Path, Path], tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    losses = train(gangs, folders, tmp_path / "whole", lora=lora)
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)  # nothing is learned yet
    assert losses[-1] < 0.5 * losses[0]
    train(gangs, folders, tmp_path / "parts", lora=lora, steps=STEPS // 2)
    train(gangs, folders, tmp_path / "parts", lora=lora)
    last = f"step-{STEPS:08d}"
    whole, parts = (whole_tensors(tmp_path / name / last) for name in ("whole", "parts"))
    assert same_bits(whole, parts)


@pytest.mark.parametrize(
    ("kind", "lora"),
    [("ddp", {"rank": 4}), ("zero2", {"rank": 4}), ("fsdp", {"rank": 4}), ("fsdp", None)],
    ids=["ddp", "zero2", "fsdp", "fsdp, all learns"],
)
def test_every_kind_of_data_parallelism_learns_the_same(
    gangs: GangStarter,
    folders: tuple[Path, Path],
    tmp_path: Path,
    kind: str,
    lora: dict[str, Any] | None,
) -> None:
    short: dict[str, Any] = {"steps": 3, "lora": lora}
    alone = train(gangs, folders, tmp_path / "alone", **short, micro_batch_size=1)
    asked = {"parallelism": {"data_parallel": kind}, "memory": {"recompute": "full"}}
    shared = train(gangs, folders, tmp_path / kind, ranks=2, **merge(short, asked))
    assert shared == pytest.approx(alone, rel=1e-4)
    expected, rewards = (last_rewards(tmp_path / name) for name in ("alone", kind))
    assert rewards == pytest.approx(expected, rel=1e-3)
    margin = rewards["chosen"] - rewards["rejected"]
    assert margin > 0
    assert math.log1p(math.exp(-margin)) <= shared[-1] + 1e-6  # -log sigmoid is convex


def last_rewards(folder: Path) -> dict[str, float]:
    """Of the last step."""
    lines = (folder / "metrics" / "steps.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["rewards"]
