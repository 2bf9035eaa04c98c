"""Weights in 4 bits: NF4 (Dettmers et al. 2023).

Trained weights are about normal around zero. NF4's sixteen levels are quantiles of the normal
distribution, so that each is used about as often, with an exact zero and both ends at one. A weight
is one of the levels times the largest magnitude of its block: 64 neighbours within a row, whose
last block may be shorter. Rows are packed on their own, so a rank that has some rows, or columns
from a multiple of 64 on, has exactly the whole weight's values there; cut elsewhere, blocks differ.

    bytes for each weight: 1/2 and 4/64 of its block's scale

Products unpack the weight, forward and again backward: it never stays.

Shapes: B batch, S sequence, I and O input and output features, N blocks of a row, G weights of a
block.
"""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

BLOCK = 64
_TAIL = (1 / 32 + 1 / 30) / 2
"""Of the normal distribution, beyond the outermost levels: half of a step of either side."""


@functools.cache
def levels() -> tuple[float, ...]:
    """From -1 to 1: seven quantiles below zero, zero, and eight above it."""
    quantile = NormalDist().inv_cdf
    above = [quantile(0.5 + (0.5 - _TAIL) * step / 8) for step in range(1, 9)]
    below = [-quantile(0.5 + (0.5 - _TAIL) * step / 7) for step in range(7, 0, -1)]
    return tuple(level / above[-1] for level in (*below, 0.0, *above))


def packed_shapes(rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the codes, two to a byte, and the scales of a weight of this shape."""
    return (rows, (columns + 1) // 2), (rows, -(-columns // BLOCK))


def pack(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (uint8, two to a byte) and scales (fp32) of a weight; the nearest level each."""
    features = weight_OI.shape[1]
    padded = F.pad(weight_OI.float(), (0, -features % BLOCK))
    blocks_ONG = padded.unflatten(1, (-1, BLOCK))
    scales_ON = blocks_ONG.abs().amax(-1)
    ratios_ONG = blocks_ONG / scales_ON.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    table = torch.tensor(levels(), device=weight_OI.device)
    codes = torch.bucketize(ratios_ONG, (table[1:] + table[:-1]) / 2).to(torch.uint8)
    codes = F.pad(codes.flatten(1)[:, :features], (0, features % 2))
    return (codes[:, 0::2] << 4) | codes[:, 1::2], scales_ON


def unpack(codes: Tensor, scales_ON: Tensor, *, features: int, dtype: torch.dtype) -> Tensor:
    """The weight that these codes and scales stand for, shape O I."""
    table = torch.tensor(levels(), device=codes.device)
    both = torch.stack((codes >> 4, codes & 15), dim=-1).flatten(1)[:, :features]
    ratios_OI = table[both.int()]
    return (ratios_OI * scales_ON.repeat_interleave(BLOCK, 1)[:, :features]).to(dtype)


def linear_of_packed(x_BSI: Tensor, codes: Tensor, scales_ON: Tensor) -> Tensor:
    """The product x · weightᵀ in the type of x; the weight has no gradient."""
    return cast("Tensor", _LinearOfPacked.apply(x_BSI, codes, scales_ON))


class _LinearOfPacked(Function):
    @staticmethod
    def forward(ctx: Any, x_BSI: Tensor, codes: Tensor, scales_ON: Tensor) -> Tensor:
        ctx.save_for_backward(codes, scales_ON)
        ctx.features = x_BSI.shape[-1]
        return F.linear(x_BSI, unpack(codes, scales_ON, features=ctx.features, dtype=x_BSI.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        codes, scales_ON = ctx.saved_tensors
        dtype = gradients[0].dtype
        weight_OI = unpack(codes, scales_ON, features=ctx.features, dtype=dtype)
        return gradients[0] @ weight_OI, None, None
