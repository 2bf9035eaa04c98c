from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drumline_contract.config import ModelConfig
from drumline_contract.layout import Layout
from drumline_trainer.models.llama import Llama
from drumline_trainer.models.replaceable import Positions
from drumline_trainer.parallelism.context_parallel.apply import ZigzagPositions, context_parallel
from drumline_trainer.parallelism.context_parallel.zigzag import context_slices
from drumline_trainer.sharding.world import World

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_s_tokens_have_the_positions_that_it_was_given(size: int) -> None:
    for index in range(size):
        positions = ZigzagPositions(Positions(), size=size, index=index)
        given = context_slices(24, size=size, index=index)
        own = torch.zeros(2, 24 // size, 5)
        assert positions(own).tolist() == given.tolist()
        assert positions.length(own) == 24


def test_what_gathers_tokens_before_attention_says_how_many_it_sees() -> None:
    class Gathered(Positions):
        """Two ranks of a tensor axis hold half of the tokens each."""

        def forward(self, x_BSD: Tensor) -> Tensor:
            return torch.arange(self.length(x_BSD))

        def length(self, x_BSD: Tensor) -> int:
            return 2 * x_BSD.shape[1]

    positions = ZigzagPositions(Gathered(), size=2, index=1)
    assert positions(torch.zeros(1, 2, 5)).tolist() == [2, 3, 4, 5]
    assert positions.length(torch.zeros(1, 2, 5)) == 8


def test_a_model_alone_stays_as_it_is() -> None:
    model = Llama(ModelConfig())
    before = dict(model.named_modules())
    context_parallel(model, World(layout=Layout(), rank=0, device=CPU))
    assert dict(model.named_modules()) == before
