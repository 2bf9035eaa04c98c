"""AdamW (Loshchilov and Hutter 2019) over sharded parameters.

The update is elementwise, so every rank updates its own shard without communication. Weight decay
is for matrices only: norm weights, biases and embeddings are left alone (a tied embedding is an
embedding).
"""

from __future__ import annotations

import torch
from torch import nn

from drumline_trainer.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Fused AdamW with one group that decays and one that does not."""
    named = list(model.named_parameters())
    return torch.optim.AdamW(
        [
            {
                "params": [p for name, p in named if decays(name, p)],
                "weight_decay": config.weight_decay,
            },
            {"params": [p for name, p in named if not decays(name, p)], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def decays(name: str, parameter: torch.Tensor) -> bool:
    """Whether weight decay applies to this parameter."""
    return parameter.dim() > 1 and "embedding" not in name.split(".")


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """For all groups, before the step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def training_tensors(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Weights and both moments by their names in a checkpoint.

    Moments that do not exist yet are made (zero, as AdamW itself would at its first step), so a
    fresh optimizer can be filled in place.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        tensors[f"model.{name}"] = parameter.detach()
        tensors[f"optimizer.exp_avg.{name}"] = state["exp_avg"]
        tensors[f"optimizer.exp_avg_sq.{name}"] = state["exp_avg_sq"]
    return tensors


def set_finished_steps(optimizer: torch.optim.AdamW, steps: int) -> None:
    """The step count of the bias correction: one number for all parameters."""
    for state in optimizer.state.values():
        state["step"].fill_(float(steps))
