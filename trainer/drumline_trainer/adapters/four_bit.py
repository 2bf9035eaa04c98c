"""Weights in 4 bits: NF4 (Dettmers et al. 2023).

Trained weights are about normal around zero. NF4's sixteen levels are quantiles of the normal
distribution, so that each is used about as often, with an exact zero and both ends at one. A weight
is one of the levels times the largest magnitude of its block: 64 neighbours within a row, whose
last block may be shorter. Rows are packed on their own, so a rank that has some rows, or columns
from a multiple of 64 on, has exactly the whole weight's values there; cut elsewhere, blocks differ.

With double quantisation the scales are packed too: 8 bits each, times a step that 256 rows share
within a column of blocks. Weights are then packed against the scales that will be there. (The paper
takes 8-bit floats about the mean; these are whole numbers from zero, so that a rank's part needs to
know no mean.) A rank that has rows from a multiple of 256 on still has the whole weight's values.

    bits for each weight: 4 and 32/64 of its block's scale: 4.5
    with double quantisation: 4, 8/64 and 32/(64 · 256) of the step: 4.127

Products unpack the weight, forward and again backward: it never stays.

Shapes: B batch, S sequence, I and O input and output features, N blocks of a row, G weights of a
block, K groups of rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

BLOCK = 64
ROWS = 256
"""Number of rows whose scales share a step."""
_LARGEST = 255
_TINY = torch.finfo(torch.float32).tiny
_TAIL = (1 / 32 + 1 / 30) / 2
"""Share of the normal distribution beyond the outermost levels: half of a step of either side."""


def levels() -> tuple[float, ...]:
    """Return the 16 levels from -1 to 1: seven quantiles below zero, zero, and eight above it."""
    # Both sides have their own number of levels, so zero is exact: seven below and eight above.
    quantile = NormalDist().inv_cdf
    above = [quantile(0.5 + (0.5 - _TAIL) * step / 8) for step in range(1, 9)]
    below = [-quantile(0.5 + (0.5 - _TAIL) * step / 7) for step in range(7, 0, -1)]
    # Divided by the largest, so the ends are -1 and 1.
    return tuple(level / above[-1] for level in (*below, 0.0, *above))


_LEVELS = levels()
"""A constant, which torch's compiler takes as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A weight in 4 bits."""

    codes: Tensor
    """Index of the level, uint8 [O, I / 2], two per byte, row by row."""
    scales: Tensor
    """O N: what levels are to be multiplied by, fp32; or uint8, how many steps that is."""
    steps: Tensor | None = None
    """K N, fp32: with double quantisation."""

    @classmethod
    def empty(cls, rows: int, columns: int, *, doubly: bool, device: torch.device) -> Packed:
        """Make room for a weight of shape [rows, columns].

        Args:
            rows: output features.
            columns: input features.
            doubly: whether scales are quantized, too.
            device: device of the storage.
        """
        # Rounded up: the last block of a row may be shorter.
        blocks, scale_type = -(-columns // BLOCK), torch.uint8 if doubly else torch.float32
        empty = functools.partial(torch.empty, device=device)
        return cls(
            # An odd row ends with half a byte.
            codes=empty(rows, (columns + 1) // 2, dtype=torch.uint8),
            scales=empty(rows, blocks, dtype=scale_type),
            steps=empty(-(-rows // ROWS), blocks) if doubly else None,
        )

    def weight(self, *, features: int, dtype: torch.dtype) -> Tensor:
        """Unpack the weight [O, I].

        Args:
            features: I.
            dtype: dtype of the result.
        """
        # The table has 16 values. Indexing makes [O, I] directly in fp32.
        table = _table(self.codes.device)
        # High half first. The padding of odd rows is cut off before the lookup.
        both = torch.stack((self.codes >> 4, self.codes & 15), dim=-1).flatten(1)[:, :features]
        ratios_OI = table[both.int()]
        scales_ON = _unpacked(self.scales, self.steps)
        # Each scale is repeated for its block of 64 weights. The product is fp32 and rounded once.
        return (ratios_OI * scales_ON.repeat_interleave(BLOCK, 1)[:, :features]).to(dtype)


def pack(weight_OI: Tensor, *, doubly: bool) -> Packed:
    """Quantize a weight [O, I] to the nearest NF4 levels, with one scale per block.

    Args:
        weight_OI: of any floating type.
        doubly: whether its scales are packed too.
    """
    features = weight_OI.shape[1]
    # Zeros at the end do not change a block's largest magnitude.
    padded = F.pad(weight_OI.float(), (0, -features % BLOCK))
    blocks_ONG = cast("Tensor", padded.unflatten(1, (-1, BLOCK)))
    scales, steps = blocks_ONG.abs().amax(-1), None
    if doubly:
        # The scales are quantized first. Weights are then measured by the scales that unpacking
        # will use.
        scales, steps = _pack_scales(scales)
    # A block of zeros has scale 0. The clamp avoids 0 / 0, and its code is that of the exact zero.
    ratios_ONG = blocks_ONG / _unpacked(scales, steps).clamp(min=_TINY)[..., None]
    table = _table(weight_OI.device)
    # Borders lie midway between levels, so `bucketize` finds the nearest level.
    codes = torch.bucketize(ratios_ONG, (table[1:] + table[:-1]) / 2).to(torch.uint8)
    # Padding to whole blocks is removed. An odd row gets one more code to fill its byte.
    codes = F.pad(codes.flatten(1)[:, :features], (0, features % 2))
    return Packed(codes=(codes[:, 0::2] << 4) | codes[:, 1::2], scales=scales, steps=steps)


def _table(device: torch.device) -> Tensor:
    """Return the levels, fp32 [16], on the device. The copy does not wait for a GPU."""
    return torch.tensor(_LEVELS).to(device, non_blocking=True)


def _pack_scales(scales_ON: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize scales [O, N] to multiples of a step. A scale above zero stays above zero.

    Returns:
        Multiples, uint8 [O, N], and steps, fp32 [O / ROWS, N].
    """
    rows = len(scales_ON)
    # Rows are padded to whole groups of 256 with scales of 0.
    padded = F.pad(scales_ON, (0, 0, 0, -rows % ROWS))
    groups = cast("Tensor", padded.unflatten(0, (-1, ROWS)))
    # Whole numbers up to 255 of a step, so the largest scale of a group is kept up to rounding.
    steps_KN = groups.amax(1) / _LARGEST
    counts = groups / steps_KN.clamp(min=_TINY)[:, None]
    # At least 1: a scale that is rounded to 0 would delete its block. A scale of 0 stays 0.
    counts = counts.round().clamp(1, _LARGEST) * (groups > 0)
    return counts.flatten(0, 1)[:rows].to(torch.uint8), steps_KN


def _unpacked(scales_ON: Tensor, steps_KN: Tensor | None) -> Tensor:
    """Return the scales in fp32 [O, N]."""
    if steps_KN is None:
        return scales_ON
    return scales_ON * steps_KN.repeat_interleave(ROWS, 0)[: len(scales_ON)]


def linear_of_packed(x_BSI: Tensor, packed: Packed) -> Tensor:
    """Return x · weightᵀ [B, S, O] in the type of x [B, S, I]. The weight has no gradient."""
    return cast("Tensor", _LinearOfPacked.apply(x_BSI, packed))


class _LinearOfPacked(Function):
    @staticmethod
    def forward(ctx: Any, x_BSI: Tensor, packed: Packed) -> Tensor:
        # The packed weight is kept instead of the unpacked one: memory stays at 4 bits per weight.
        ctx.packed, ctx.features = packed, x_BSI.shape[-1]
        return F.linear(x_BSI, packed.weight(features=ctx.features, dtype=x_BSI.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # The weight is frozen, so only the input has a gradient: [B, S, O] times [O, I].
        weight_OI = ctx.packed.weight(features=ctx.features, dtype=gradients[0].dtype)
        return gradients[0] @ weight_OI, None
