"""An adapter beside a layer that its module never calls is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_contract.config import ConfigError, LoraConfig
from drumline_trainer.adapters.lora import LoraLinear, called_adapters
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut

ROWS = torch.ones(2, 4)
WHOLE = Cut(shape=(4, 4), box=Box(offsets=(0, 0), shape=(4, 4)))


class Block(nn.Module):
    """Has one adapted layer, and calls it or reads its weight alone."""

    def __init__(self, *, name: str, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        config = LoraConfig(rank=2)
        self.layer = LoraLinear(nn.Linear(4, 4), name=name, cut=WHOLE, config=config, group=None)

    def forward(self, x: Tensor) -> Tensor:
        if self.reads:
            assert self.layer.weight is not None
            return F.linear(x, self.layer.weight)
        return self.layer(x)


def test_a_layer_that_is_read_and_not_called_is_named() -> None:
    stage = nn.Sequential(Block(name="0.layer", reads=False), Block(name="1.layer", reads=True))
    with pytest.raises(ConfigError, match=r"lora\.targets: .*1\.layer"), called_adapters(stage):
        stage(ROWS)


def test_modules_that_are_not_reached_are_left_alone() -> None:
    stage = nn.Sequential(Block(name="0.layer", reads=False), Block(name="1.layer", reads=True))
    with called_adapters(stage):
        stage[0](ROWS)
    assert not any(module._forward_pre_hooks for module in stage.modules())
