"""Going back through the entry of a block, the wire and the matrix units work at the same time.

The gradient of a block's input is a sum over the ranks, and the input of the block waits for it;
the gradients of the weights of its column-cut layers wait for nothing (Megatron-LM's asynchronous
all-reduce). Autograd would work out a layer's two gradients one after the other and sum when all
layers are done. So a layer here only works out its input's gradient, and sends what came back to it
on to the entry, as the gradient of a `carrier`: a tensor of the shape of its output and without
content. The entry starts the sum, multiplies the weights' gradients, and then waits for the sum.

Not for pipelines that split the backward pass: those move the weights' gradients elsewhere.

Shapes: B batch, S sequence, T = B·S tokens, I and O input and output features of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.parallelism.tensor_parallel.collectives import (
    all_positions,
    start_scattered_sum,
    start_sum,
)


def enter_with_carriers(
    x_BSI: Tensor, weights: Sequence[Tensor], *, group: ProcessGroup, by_position: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the layers' input [B, S, I], and a carrier [B, S, O] for each `linear_with_carrier`.

    Args:
        x_BSI: this rank's positions with `by_position`, otherwise all positions, equal on all
            ranks.
        weights: [O, I] each, this rank's outputs.
        group: the ranks of the tensor axis.
        by_position: whether x must be gathered.
    """
    entered, *carriers = cast(
        "tuple[Tensor, ...]", _Enter.apply(x_BSI, group, by_position, *weights)
    )
    return entered, tuple(carriers)


def linear_with_carrier(x_BSI: Tensor, weight_OI: Tensor, carrier_BSO: Tensor) -> Tensor:
    """Return x · weightᵀ [B, S, O]. The weight gets its gradient where the carrier was made.

    Args:
        x_BSI: input inside the region [B, S, I].
        weight_OI: this rank's weight [O, I].
        carrier_BSO: zeros that link the weight's gradient to the region's entry [B, S, O].
    """
    return cast("Tensor", _LinearWithCarrier.apply(x_BSI, weight_OI, carrier_BSO))


class _Enter(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BSI: Tensor,
        group: ProcessGroup,
        by_position: bool,  # noqa: FBT001 - autograd passes no keywords
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        entered = all_positions(x_BSI, group) if by_position else x_BSI.view_as(x_BSI)
        ctx.group, ctx.by_position = group, by_position
        ctx.save_for_backward(entered if by_position else x_BSI)
        ctx.set_materialize_grads(False)  # of a layer that was left out
        # A carrier takes no memory: one zero, expanded. It only links the gradients.
        nothing = x_BSI.new_zeros(())
        carriers = [nothing.expand(*entered.shape[:-1], weight.shape[0]) for weight in weights]
        return (entered, *carriers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        of_input, *of_outputs = gradients
        start = start_scattered_sum if ctx.by_position else start_sum
        if of_input is None or not ctx.needs_input_grad[0]:
            summed, work = None, None
        else:
            # 1. Start the sum over the ranks, which the block before waits for.
            summed, work = start(of_input, ctx.group)
        # 2. Meanwhile compute the weights' gradients, which nothing waits for.
        x_TI = ctx.saved_tensors[0].flatten(0, -2)
        of_weights = [None if g is None else g.flatten(0, -2).mT @ x_TI for g in of_outputs]
        if work is not None:
            with step_part("reduce_scatter" if ctx.by_position else "all_reduce", Axis.TENSOR):
                work.wait()
        return (summed, None, None, *of_weights)


class _LinearWithCarrier(Function):
    @staticmethod
    def forward(ctx: Any, x_BSI: Tensor, weight_OI: Tensor, carrier_BSO: Tensor) -> Tensor:
        del carrier_BSO
        ctx.save_for_backward(weight_OI)
        return F.linear(x_BSI, weight_OI)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        (weight_OI,) = ctx.saved_tensors
        return gradients[0] @ weight_OI, None, gradients[0]
