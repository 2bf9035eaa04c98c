"""Prompts that share passes are continued as each alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from drumline_contract.config import TrainerConfig
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import initialize
from drumline_trainer.prompt_answers import PromptAnswers

CPU = torch.device("cpu")
PROMPTS = ("a", "The sky is", "two and two", "x" * 15)
TOKENS = 6


def model_of(config: TrainerConfig, passes: list[int]) -> nn.Module:
    module = build_on_meta(config.model).to_empty(device="cpu").eval()
    initialize(module, seed=3)
    module.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    return module


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("micro_batch", "rows"), [(1, [1, 1, 1, 1]), (3, [2, 2]), (16, [4])], ids=str
)
def test_prompts_share_passes_as_far_as_a_micro_batch_holds_them(
    family: str, micro_batch: int, rows: list[int]
) -> None:
    """gpt2 knows 16 positions, so the longest row is a window of its last ones."""
    config = TrainerConfig.from_dict(
        {
            "model": {
                "family": family,
                "layers": 2,
                "hidden_size": 32,
                "ffn_size": 64,
                "heads": 2,
                **({"max_positions": 16} if family == "gpt2" else {"kv_heads": 2}),
            },
            "data": {"sequence_length": 16},
            "micro_batch_size": micro_batch,
            "evaluation": {"prompts": "\n".join(PROMPTS), "prompt_tokens": TOKENS},
        }
    )
    passes: list[int] = []
    model, prompts = model_of(config, passes), PromptAnswers.of(config, device=CPU)
    pairs = list(prompts.answers(model))
    assert passes == [count for count in rows for _ in range(TOKENS)]
    for number, prompt in enumerate(PROMPTS):
        alone = replace(prompts, prompts=(prompt,), tokens=(prompts.tokens[number],))
        assert list(alone.answers(model)) == [pairs[number]]
