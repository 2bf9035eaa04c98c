from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import ModelConfig, TrainerConfig, merge
from drumline_trainer.models import llama
from drumline_trainer.rank import run_rank
from tests.gloo.gang import GangStarter

BASE: dict[str, Any] = {
    "model": {"layers": 4, "hidden_size": 16, "ffn_size": 16, "heads": 2, "kv_heads": 2},
    "data": {"sequence_length": 16},
    "parallelism": {"data_parallel": "ddp", "pipeline": 2},
    "optimizer": {"schedule": "constant", "warmup_steps": 0},
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "steps": 6,
}
MEASURED = {"parallelism": {"stage_balance": "measured"}, "checkpoint": {"every_steps": 3}}


class FirstIsHeavy(llama.LlamaLayer):
    """The first layer of a model takes much longer than an even share."""

    numbers = itertools.count()

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.heavy = next(self.numbers) % config.layers == 0

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """What a layer does, later."""
        if self.heavy:
            time.sleep(0.3)  # a stall of the other stage for a second must not outweigh it
        return super().forward(*arguments, **options)


def train_thrice(placement: Placement, pipe: Connection, source: str) -> None:
    """Undisturbed and by cost; measured for three steps; on from there. Sends all losses."""
    llama.LlamaLayer = FirstIsHeavy
    assert placement.checkpoint_folder is not None
    runs = [
        (replace(placement, checkpoint_folder=None), {}),
        (placement, MEASURED | {"steps": 3}),
        (placement, MEASURED),
    ]
    losses: list[list[float]] = []
    for attempt, (place, changes) in enumerate(runs):
        raw = merge(merge(BASE, {"data": {"source": source}}), changes)
        file = placement.checkpoint_folder.parent / f"losses-{attempt}-{placement.rank}"
        run_rank(
            config=TrainerConfig.from_dict(raw),
            placement=replace(place, attempt=attempt),
            losses_file=file,
            write=lambda _: None,
        )
        lines = file.read_text().splitlines() if file.exists() else []
        losses.append([json.loads(line)["loss"] for line in lines])
    pipe.send(losses)


def test_layers_move_away_from_what_took_long_when_a_run_goes_on_from_a_checkpoint(
    gangs: GangStarter, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "text.py").write_bytes(bytes(i * i * 7 % 251 for i in range(20_000)))
    folder = tmp_path / "checkpoints"
    (undisturbed, before, after), _ = gangs.run(
        train_thrice, str(text), world_size=2, checkpoint_folder=folder
    )
    saved = {
        step: json.loads((folder / f"step-{step:08d}" / "manifest.json").read_text())
        for step in (3, 6)
    }
    stages = {step: manifest["trainer"]["stages"] for step, manifest in saved.items()}
    assert stages[3] == {"now": [3, 4], "next": [2, 4]}  # the head is as much as two layers
    assert stages[6]["now"] == [2, 4]
    assert before + after == pytest.approx(undisturbed, rel=1e-6)
