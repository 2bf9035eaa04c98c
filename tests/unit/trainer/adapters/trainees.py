"""Models with adapters in one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drumline_trainer.adapters.base import begin_frozen_and_adapters
from drumline_trainer.adapters.lora import B
from drumline_trainer.assembly.assemble import Trainee, assemble
from drumline_trainer.config import TrainerConfig, merge
from drumline_trainer.layout import Layout
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


def begun(config: TrainerConfig, restored: dict[str, Any] | None = None) -> Trainee:
    """At its first step."""
    layout = Layout.of(config.parallelism, world_size=1)
    trainee = assemble(config, World(layout=layout, rank=0, device=torch.device("cpu")))
    begin_frozen_and_adapters(
        trainee.slices, trainee.weights.frozen, trainee.stages, config=config, restored=restored
    )
    trainee.weights.publish()
    return trainee


def taught(trainee: Trainee) -> Trainee:
    """With adapters that add something."""
    generator = torch.Generator().manual_seed(5)
    for part in trainee.slices:
        if part.name.endswith(B):
            part.tensor.copy_(torch.randn(part.shape, generator=generator) * 0.1)
    trainee.weights.publish()
    return trainee


def logits(trainee: Trainee) -> Tensor:
    return trainee.stages[0](TOKENS)


def passed(trainee: Trainee) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of one batch."""
    trainee.begin(targets=TOKENS.numel())
    loss = trainee.loss(logits(trainee), TOKENS.roll(-1, 1))
    loss.backward()
    names = [part.name for part in trainee.slices]
    return loss.detach(), dict(zip(names, trainee.gradients(), strict=True))
