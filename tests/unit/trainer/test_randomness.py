from __future__ import annotations

import torch

from drumline_contract.config import ModelConfig
from drumline_trainer.models.llama import Llama
from drumline_trainer.train import reseed


def drawn(seed: int, *, step: int, rank: int) -> list[float]:
    reseed(seed, step=step, rank=rank)
    return torch.rand(4).tolist()


def test_numbers_depend_on_seed_step_and_rank_and_nothing_else() -> None:
    first = drawn(0, step=3, rank=1)
    torch.rand(99)  # whatever was drawn before
    assert drawn(0, step=3, rank=1) == first
    rest = [drawn(1, step=3, rank=1), drawn(0, step=4, rank=1), drawn(0, step=3, rank=2)]
    assert first not in rest


def test_dropout_draws_from_them_and_without_it_nothing_is_drawn() -> None:
    tokens_BS = torch.arange(8).view(1, 8)
    for share in (0.0, 0.5):
        torch.manual_seed(0)
        model = Llama(ModelConfig(dropout=share))
        outputs = []
        for step in (1, 1, 2):
            reseed(0, step=step, rank=0)
            before = torch.get_rng_state()
            outputs.append(model(tokens_BS))
            assert torch.equal(before, torch.get_rng_state()) == (share == 0.0)
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[1], outputs[2]) == (share == 0.0)
