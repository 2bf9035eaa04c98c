"""AdamW (Loshchilov and Hutter 2019) over this rank's slices of the weights.

The update is elementwise, so every rank updates its own slices without communication, and the
optimizer is given them as plain tensors: it need not know how they were cut (distributed tensors
would work out their sharding rules anew in every process, half a second before its first step).
Weight decay is for matrices only: norm weights, biases and embeddings are left alone (a tied
embedding is an embedding).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drumline_trainer.config import OptimizerConfig
from drumline_trainer.parallelism.slices import Slice


class ShardedAdamW(torch.optim.AdamW):
    """Fused AdamW with one group that decays and one that does not."""

    def __init__(self, slices: Sequence[Slice], config: OptimizerConfig) -> None:
        """Share the storage of the slices, which must have been given one."""
        self.weights = tuple(slices)
        self._parameters = [nn.Parameter(weight.tensor) for weight in slices]
        super().__init__(
            parameter_groups(slices, self._parameters, weight_decay=config.weight_decay),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
        for parameter in self._parameters:
            # as AdamW itself would at its first step: a fresh optimizer can be filled in place
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """One step at this learning rate with the gradients of the slices, in their order."""
        step(self, self._parameters, gradients, rate=rate)

    def set_finished_steps(self, steps: int) -> None:
        """The step count of the bias correction: one number for all parameters."""
        for state in self.state.values():
            state["step"].fill_(float(steps))

    def slices(self) -> list[Slice]:
        """Weights and both moments by their names in a checkpoint."""
        slices: list[Slice] = []
        for weight, parameter in zip(self.weights, self._parameters, strict=True):
            state = self.state[parameter]
            slices.append(weight.like(weight.tensor, prefix="model"))
            slices.append(weight.like(state["exp_avg"], prefix="optimizer.exp_avg"))
            slices.append(weight.like(state["exp_avg_sq"], prefix="optimizer.exp_avg_sq"))
        return slices


def step(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[Tensor],
    *,
    rate: float,
) -> None:
    """One step of an optimizer of torch's at this rate; the gradients are forgotten."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()


def parameter_groups(
    slices: Sequence[Slice], parameters: Sequence[nn.Parameter], *, weight_decay: float
) -> list[dict[str, Any]]:
    """One group that decays and one that does not, for an optimizer of torch's."""
    decaying = [decays(weight.name, weight.shape) for weight in slices]
    return [
        {
            "params": [p for p, its in zip(parameters, decaying, strict=True) if its],
            "weight_decay": weight_decay,
        },
        {
            "params": [p for p, its in zip(parameters, decaying, strict=True) if not its],
            "weight_decay": 0.0,
        },
    ]


def decays(name: str, shape: Sequence[int]) -> bool:
    """Whether weight decay applies to this parameter."""
    return len(shape) > 1 and "embedding" not in name.split(".")
