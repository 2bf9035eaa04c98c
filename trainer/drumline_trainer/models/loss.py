"""The training loss: cross entropy in nats, as a sum, so that parts of a batch add up.

The mean is taken once, over the tokens of the global batch. So no layout needs the number of tokens
of another rank.

Logits are never completely in fp32. Forward and backward pass convert some rows at a time. For
8,192 tokens and 128,256 words the logits would be 4.2 GB, and their gradients another 4.2 GB.
Logits and gradients are kept in the type of the logits.

Shapes: B batch, S sequence, V vocabulary, N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from drumline_contract.shapes.loss_rows import rows_of_chunk
from drumline_trainer.data.dataset import IGNORED


def token_losses_sum(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Sum the cross entropy over all positions, computed in fp32.

    A classifier's logits of shape B C and targets of shape B are summed over the samples.
    """
    return token_losses(logits_BSV, targets_BS).sum()


def token_losses(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Return the loss of each of the N = B · S positions in fp32 [N], 0 without a target."""
    logits_NV, targets_N = logits_BSV.flatten(0, -2), targets_BS.flatten()
    return cast("Tensor", _ChunkedCrossEntropy.apply(logits_NV, targets_N))


class _ChunkedCrossEntropy(Function):
    """-log softmax(logits)[target], some rows after the other."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        # All buffers are [N] or [C, V], with C rows of a chunk. Nothing of [N, V] is made beside
        # the logits.
        counted_N = targets_N != IGNORED
        # `gather` needs a valid index where there is no target. The result of these rows is set to
        # 0 below.
        words_N1 = targets_N.masked_fill(~counted_N, 0).unsqueeze(-1)
        chunks: list[tuple[Tensor, Tensor, Tensor]] = []
        part_CV = logits_NV
        for logits_CV, words_C1 in _chunks(logits_NV, words_N1):
            part_CV = logits_CV.float()
            # The maximum is subtracted, so no exponential overflows.
            largest_C = part_CV.amax(dim=-1)
            part_CV = part_CV - largest_C.unsqueeze(-1)
            # Before `exp_`, which overwrites the chunk.
            of_target_C = part_CV.gather(-1, words_C1).squeeze(-1)
            sums_C = part_CV.exp_().sum(dim=-1)
            # log(sum(exp(x - max))) - (x_target - max): the maximum cancels and is never added
            # back.
            chunks.append((largest_C, sums_C, sums_C.log() - of_target_C))
        # Only [N] values are saved beside the logits, and the exponentials are computed again in
        # the backward pass. Those of a single fp32 chunk are saved instead of the logits, which
        # they equal in size.
        if len(chunks) == 1 and logits_NV.dtype is torch.float32:
            ((_, sums_N, losses_N),) = chunks
            ctx.save_for_backward(part_CV, None, sums_N, words_N1, counted_N)
        else:
            largest_N, sums_N, losses_N = (torch.cat(parts) for parts in zip(*chunks, strict=True))
            ctx.save_for_backward(logits_NV, largest_N, sums_N, words_N1, counted_N)
        return losses_N.masked_fill_(~counted_N, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        values_NV, largest_N, sums_N, words_N1, counted_N = ctx.saved_tensors
        # Rows without a target get the factor 0. The incoming gradient may differ by row
        # (preferences).
        factors_N1 = (gradients[0] * counted_N).unsqueeze(-1)
        if largest_N is None:  # the values are exponentials
            return _gradient(values_NV / sums_N.unsqueeze(-1), words_N1, factors_N1), None
        # In the type of the logits, because it becomes the gradient of a product in that type.
        gradient_NV = torch.empty_like(values_NV)
        largest_N1, sums_N1 = largest_N.unsqueeze(-1), sums_N.unsqueeze(-1)
        for place_CV, logits_CV, largest_C1, sums_C1, words_C1, factors_C1 in _chunks(
            gradient_NV, values_NV, largest_N1, sums_N1, words_N1, factors_N1
        ):
            shares_CV = (logits_CV.float() - largest_C1).exp_().div_(sums_C1)
            place_CV.copy_(_gradient(shares_CV, words_C1, factors_C1))
        return gradient_NV, None


def _gradient(shares_CV: Tensor, words_C1: Tensor, factors_C1: Tensor) -> Tensor:
    """Turn softmax(logits) in place into its gradient: less one_hot(target), times the factors."""
    # One value is expanded to [C, 1]. Each row adds to one place of its own, so atomic adds have no
    # order.
    minus_one_C1 = shares_CV.new_full((), -1.0).expand(len(shares_CV), 1)
    shares_CV.scatter_add_(-1, words_C1, minus_one_C1)
    return shares_CV.mul_(factors_C1)


def _chunks(logits_NV: Tensor, *values: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors into the rows that are taken in fp32 together, at least one chunk.

    The last chunk may be shorter. Chunks do not change a row's result.
    """
    length = rows_of_chunk(logits_NV.shape[-1])
    return zip(*(torch.split(tensor, length) for tensor in (logits_NV, *values)), strict=True)


def chunks_of(logits_NV: Tensor) -> Iterator[slice]:
    """Yield the rows that are taken in fp32 together."""
    length = rows_of_chunk(logits_NV.shape[-1])
    for begin in range(0, len(logits_NV), length):
        yield slice(begin, begin + length)
