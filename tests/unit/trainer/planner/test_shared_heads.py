"""Key-value heads that several tensor ranks have: what the bill and the search know of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_contract.config import ModelConfig, TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_contract.shapes.attention import shares_heads
from drumline_planner.adapter_weights import trained_by_lora
from drumline_planner.rank_weights import rank_parameters
from drumline_planner.setup import TrainingSetup
from drumline_trainer.assembly.assemble import assemble

from .test_deepseek import world_of

SHARED = ModelConfig(layers=2, hidden_size=64, ffn_size=96, heads=8, kv_heads=2, vocab_size=256)


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["all learns", "adapters"])
def test_every_rank_has_the_weights_of_its_bill(lora: dict[str, Any] | None) -> None:
    degrees = {"data_parallel": "ddp", "tensor": 4}
    config = TrainerConfig.from_dict({"parallelism": degrees, "lora": lora})
    config = replace(config, model=SHARED)
    layout = validated_layout(config, world_size=4)
    of = TrainingSetup.of(config, layout)
    for rank in range(4):
        with world_of(layout, rank=rank) as world:
            model = assemble(config, world)
        held = sum(part.tensor.numel() for part in (*model.slices, *model.weights.frozen))
        learning = 0 if lora is None else sum(part.tensor.numel() for part in model.slices)
        # the last norm, which is billed with the head, is on all tensor ranks
        assert held - learning == pytest.approx(sum(rank_parameters(of, 0)), abs=64)
        assert learning == trained_by_lora(of)
        places = {part.name: (part.box.offsets[0], part.copies, part.copy) for part in model.slices}
        if lora is None:
            keys = places["layers.0.attention.key.weight"]
            assert keys == (8 * (rank // 2), 2, rank % 2)


def test_ranks_have_heads_of_their_own_or_one_that_serves_theirs() -> None:
    legal = [
        n
        for n in range(1, 17)
        if shares_heads(replace(SHARED, heads=12, kv_heads=4, head_size=8), n)
    ]
    assert legal == [1, 2, 4, 12]
