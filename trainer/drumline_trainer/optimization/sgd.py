"""Stochastic gradient descent with momentum (Polyak 1964) over this rank's slices of the weights.

    m = momentum · m + (g + weight_decay · w)        w = w - rate · m

Elementwise as AdamW is, with half of its state: 4 bytes for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from drumline_trainer.config import OptimizerConfig
from drumline_trainer.optimization.adamw import parameter_groups, step
from drumline_trainer.parallelism.slices import Slice


class ShardedSGD(torch.optim.SGD):
    """Fused SGD with one group that decays and one that does not."""

    def __init__(self, slices: Sequence[Slice], config: OptimizerConfig) -> None:
        """Share the storage of the slices, which must have been given one."""
        self.weights = tuple(slices)
        self._parameters = [nn.Parameter(weight.tensor) for weight in slices]
        super().__init__(
            parameter_groups(slices, self._parameters, weight_decay=config.weight_decay),
            lr=config.learning_rate,
            momentum=config.momentum,
            fused=True,
        )
        for parameter in self._parameters:  # from zero, the first step makes it the gradient
            self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """One step at this learning rate with the gradients of the slices, in their order."""
        step(self, self._parameters, gradients, rate=rate)

    def set_finished_steps(self, steps: int) -> None:
        """Nothing here depends on it."""

    def slices(self) -> list[Slice]:
        """Weights and momenta by their names in a checkpoint."""
        slices: list[Slice] = []
        for weight, parameter in zip(self.weights, self._parameters, strict=True):
            momentum = self.state[parameter]["momentum_buffer"]
            slices.append(weight.like(weight.tensor, prefix="model"))
            slices.append(weight.like(momentum, prefix="optimizer.momentum"))
        return slices
