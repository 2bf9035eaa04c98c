"""Weights that stay as they begin, in the bill: no gradient, no moments, no fp32."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_contract.config import TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_planner.memory import memory_bill
from drumline_planner.setup import TrainingSetup
from drumline_trainer.assembly.assemble import assemble

from .test_deepseek import world_of

MODEL = {"layers": 2, "hidden_size": 64, "ffn_size": 96, "heads": 4, "kv_heads": 2}


def sizes(**options: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Of the bill, and of what rank 0 really has."""
    raw = {"model": MODEL, "precision": "bf16", "micro_batch_size": 8, **options}
    config = TrainerConfig.from_dict(raw)
    layout = validated_layout(config, world_size=2)
    bill = memory_bill(TrainingSetup.of(config, layout), capacity=2**30)
    with world_of(layout, rank=0) as world:
        weights = assemble(config, world).weights
    learning = sum(4 * part.tensor.numel() for part in weights.slices)
    frozen = sum(part.tensor.nbytes for part in weights.frozen)
    held = {"learning": float(learning), "frozen": float(frozen)}
    return {line.name: line.size for line in bill.lines}, held


@pytest.mark.parametrize("kind", ["ddp", "zero1", "fsdp"])
def test_a_frozen_weight_has_neither_gradient_nor_moments(kind: str) -> None:
    parallelism = {"data_parallel": kind}
    billed, held = sizes(parallelism=parallelism, freeze="embedding.*, layers.0.*")
    assert held["frozen"] > 0
    assert billed["optimizer state"] == pytest.approx(2 * held["learning"], rel=0.01)
    assert billed["gradients"] <= 2.01 * held["learning"]
    if kind == "fsdp":
        whole = held["learning"] + held["frozen"]
        assert billed["parameters"] == pytest.approx(whole, rel=0.01)
    everything, _ = sizes(parallelism=parallelism)
    assert billed["gradients"] < everything["gradients"]
