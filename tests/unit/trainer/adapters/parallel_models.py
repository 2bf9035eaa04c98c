"""Models with adapters in one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drumline_contract.config import TrainerConfig, merge
from drumline_contract.layout import Layout
from drumline_trainer.adapters.base import initialize_frozen_and_adapters
from drumline_trainer.adapters.lora import B
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.sharding.world import World

SMALL: dict[str, Any] = {
    "model": {
        "vocab_size": 256,
        "layers": 2,
        "hidden_size": 16,
        "ffn_size": 40,
        "heads": 4,
        "kv_heads": 2,
    },
    "lora": {"rank": 3, "alpha": 6.0},
}
TOKENS = torch.arange(24).view(2, 12) * 7 % 256


def configured(**changes: Any) -> TrainerConfig:
    return TrainerConfig.from_dict(merge(SMALL, changes))


def begun(config: TrainerConfig, restored: dict[str, Any] | None = None) -> ParallelModel:
    """At its first step."""
    layout = Layout.of(config.parallelism, world_size=1)
    parallel_model = assemble(config, World(layout=layout, rank=0, device=torch.device("cpu")))
    initialize_frozen_and_adapters(
        parallel_model.slices,
        parallel_model.frozen,
        parallel_model.stages,
        config=config,
        restored=restored,
    )
    parallel_model.weights.refresh_copies()
    return parallel_model


def taught(parallel_model: ParallelModel) -> ParallelModel:
    """With adapters that add something."""
    generator = torch.Generator().manual_seed(5)
    for part in parallel_model.slices:
        if part.name.endswith(B):
            part.tensor.copy_(torch.randn(part.shape, generator=generator) * 0.1)
    parallel_model.weights.refresh_copies()
    return parallel_model


def logits(parallel_model: ParallelModel) -> Tensor:
    return parallel_model.stages[0](TOKENS)


def passed(parallel_model: ParallelModel) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of one batch."""
    parallel_model.begin_step(targets=TOKENS.numel())
    loss = parallel_model.loss(logits(parallel_model), TOKENS.roll(-1, 1))
    loss.backward()
    names = [part.name for part in parallel_model.slices]
    return loss.detach(), dict(zip(names, parallel_model.gradients(), strict=True))
