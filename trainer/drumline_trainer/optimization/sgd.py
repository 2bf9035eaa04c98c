"""Stochastic gradient descent with momentum (Polyak 1964) over this rank's slices of the weights.

    m = momentum · m + (g + weight_decay · w)        w = w - rate · m

Elementwise as AdamW is, with half of its state: 4 bytes for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from drumline_contract.config import OptimizerConfig
from drumline_trainer.optimization.adamw import by_decay
from drumline_trainer.sharding.slices import TensorSlice


class ShardedSGD:
    """Fused SGD over two groups: slices with weight decay and slices without."""

    def __init__(self, slices: Sequence[TensorSlice], config: OptimizerConfig) -> None:
        """Share the storage of the slices, which must have been given one."""
        self.weights = tuple(slices)
        self._momentum = config.momentum
        self._groups = by_decay(slices, weight_decay=config.weight_decay)
        # from zero, the first step makes it the gradient
        self._momenta = [torch.zeros_like(weight.tensor) for weight in slices]

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Do one step at this learning rate; gradients have the slices' order and shapes."""
        for places, weight_decay in self._groups:
            sgd(
                [self.weights[place].tensor for place in places],
                [gradients[place] for place in places],
                cast("list[Tensor | None]", [self._momenta[place] for place in places]),
                fused=True,
                weight_decay=weight_decay,
                momentum=self._momentum,
                lr=rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )

    def set_finished_steps(self, steps: int) -> None:
        """Do nothing: the update does not depend on the step."""

    def slices(self) -> list[TensorSlice]:
        """Return weights and momenta by their names in a checkpoint."""
        slices: list[TensorSlice] = []
        for weight, momentum in zip(self.weights, self._momenta, strict=True):
            slices.append(weight.like(weight.tensor, prefix="model"))
            slices.append(weight.like(momentum, prefix="optimizer.momentum"))
        return slices
