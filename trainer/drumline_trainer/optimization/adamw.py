"""AdamW (Loshchilov and Hutter 2019) over this rank's slices of the weights.

The update is elementwise, so every rank updates its own slices without communication, and the
optimizer is given them as plain tensors: it need not know how they were cut (distributed tensors
would work out their sharding rules again in every process, half a second before its first step). It
is torch's fused kernel without its `Optimizer`, which imports torch's compiler at its first step,
two seconds more.
Weight decay is for matrices only: norm weights, biases and embeddings are left alone (a tied
embedding is an embedding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from drumline_contract.config import OptimizerConfig
from drumline_trainer.sharding.slices import TensorSlice


@dataclass(frozen=True, slots=True)
class Moments:
    """AdamW's state of a slice, zeros before its first step."""

    first: Tensor
    """Mean of the gradients."""
    second: Tensor
    """Mean of their squares."""
    steps: Tensor
    """Number of updates that they have seen."""

    @classmethod
    def of(cls, weight: Tensor) -> Moments:
        """Make the state of a weight that has not been updated."""
        return cls(
            first=torch.zeros_like(weight),
            second=torch.zeros_like(weight),
            # torch's fused kernel wants the step count as an fp32 tensor on the weights' device.
            steps=torch.zeros((), dtype=torch.float32, device=weight.device),
        )


class ShardedAdamW:
    """Fused AdamW over two groups: slices with weight decay and slices without."""

    def __init__(self, slices: Sequence[TensorSlice], config: OptimizerConfig) -> None:
        """Share the storage of the slices, which must have been given one."""
        self.weights = tuple(slices)
        self._config = config
        self._groups = by_decay(slices, weight_decay=config.weight_decay)
        self._moments = [Moments.of(weight.tensor) for weight in slices]

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Do one step at this learning rate; gradients have the slices' order and shapes."""
        config = self._config
        # One kernel launch for each group, since the kernel takes one weight decay.
        for places, weight_decay in self._groups:
            moments = [self._moments[place] for place in places]
            adamw(
                [self.weights[place].tensor for place in places],
                [gradients[place] for place in places],
                [moment.first for moment in moments],
                [moment.second for moment in moments],
                # The empty list is max_exp_avg_sqs, which only amsgrad uses.
                [],
                [moment.steps for moment in moments],
                fused=True,
                amsgrad=False,
                beta1=config.beta1,
                beta2=config.beta2,
                lr=rate,
                weight_decay=weight_decay,
                eps=config.epsilon,
                maximize=False,
            )

    def set_finished_steps(self, steps: int) -> None:
        """Set the step count of the bias correction: one number for all parameters."""
        # A checkpoint has one step count. All moments are updated in the same steps.
        for moment in self._moments:
            moment.steps.fill_(float(steps))

    def slices(self) -> list[TensorSlice]:
        """Return weights and both moments by their names in a checkpoint."""
        slices: list[TensorSlice] = []
        # The names match torch's AdamW state. Checkpoints and their conversion depend on them.
        for weight, moments in zip(self.weights, self._moments, strict=True):
            slices.append(weight.like(weight.tensor, prefix="model"))
            slices.append(weight.like(moments.first, prefix="optimizer.exp_avg"))
            slices.append(weight.like(moments.second, prefix="optimizer.exp_avg_sq"))
        return slices


_TABLES = ("wte", "wpe")
"""Modules of embeddings whose names, unlike all others', do not contain `emb`."""


def by_decay(
    slices: Sequence[TensorSlice], *, weight_decay: float
) -> tuple[tuple[list[int], float], ...]:
    """Split places of slices into those that decay with this weight decay and the others."""
    decaying = [decays(weight.name, weight.shape) for weight in slices]
    # Both groups keep places, not tensors, so gradients can be looked up in the slices' order.
    return (
        ([place for place, its in enumerate(decaying) if its], weight_decay),
        ([place for place, its in enumerate(decaying) if not its], 0.0),
    )


def decays(name: str, shape: Sequence[int]) -> bool:
    """Return whether weight decay applies to a parameter: to matrices that are not lookup tables.

    Tables are recognized by the name of their module, such as `embedding` or transformers'
    `embed_tokens`. The projection of vit's patches (`embedding.projection.weight`) is a normal
    matrix. The biases of experts are a row each.
    """
    module = name.rpartition(".")[0].rpartition(".")[2]
    is_table = "emb" in module or module in _TABLES
    return len(shape) > 1 and not is_table and not name.endswith("bias")
