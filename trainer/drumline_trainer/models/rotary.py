"""Rotary positions (Su et al. 2021): pair i of a head turns by position · theta^(-2i/E).

Angles are computed in fp64 and only the tables are rounded to the type of the hidden states: a bf16
angle would be off by whole turns at long positions.

Shapes: B batch, S sequence, H heads, E size of one head, R of it what turns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from drumline_contract.config.rope import RopeScaling, RopeScalingKind

Rotary = tuple[Tensor, ...]
"""Cosines and sines; then those of layers with a window, where they have their own."""


def rotary_tables(
    positions: Tensor,
    turned: int,
    *,
    theta: float,
    scaling: RopeScaling | None = None,
    lengths: int | Tensor = 0,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of R `turned` features of a head.

    Of shape S R/2 from positions of shape S, of shape B 1 S R/2 from B S.

    Args:
        positions: positions of the tokens.
        turned: R.
        theta: the base.
        scaling: None: none.
        lengths: of the sequence or, of shape B S, of the document of each token; longrope asks.
        like: what has the type and the device of the tables.
    """
    # fp64 as the module says. [R/2] speeds in radians per position.
    pairs = torch.arange(0, turned, 2, dtype=torch.float64, device=like.device)
    speeds = theta ** (-pairs / turned)
    magnitude = 1.0
    if scaling is not None:
        # The scaling changes speeds only. YaRN also multiplies the tables by a magnitude.
        speeds = _slowed(speeds, scaling, theta=theta, lengths=lengths)
        magnitude = scaling.multiplier
    # [S, R/2], or [B, S, R/2] with documents.
    angles = positions.double().unsqueeze(-1) * speeds
    if positions.dim() > 1:
        angles = angles.unsqueeze(1)  # the same for all heads
    # The magnitude is applied before rounding. transformers multiplies cosines and sines in the
    # same place.
    return (angles.cos() * magnitude).to(like.dtype), (angles.sin() * magnitude).to(like.dtype)


def _slowed(speeds: Tensor, scaling: RopeScaling, *, theta: float, lengths: int | Tensor) -> Tensor:
    """Slow rotations down by up to `factor`, or each pair by its own factor."""
    match scaling.kind:
        case RopeScalingKind.LONGROPE:
            return speeds / _pair_factors(scaling, lengths, like=speeds)
        case RopeScalingKind.LINEAR:
            return speeds / scaling.factor
        case RopeScalingKind.LLAMA3:
            # Llama 3.1: pairs that turn often in the original length keep their speed, slow ones
            # are divided by the factor.
            turns = scaling.original_positions * speeds / (2 * math.pi)
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            # Between both limits the speeds are interpolated. `kept` is 1 for fast pairs and 0 for
            # slow ones.
            kept = ((turns - low) / (high - low)).clamp(0, 1)
        case RopeScalingKind.YARN:
            kept = _yarn_kept(scaling, theta=theta, like=speeds)
    return speeds * (kept + (1 - kept) / scaling.factor)


def _pair_factors(scaling: RopeScaling, lengths: int | Tensor, *, like: Tensor) -> Tensor:
    """Return the factor of every pair: [R/2] for one sequence, [B, S, R/2] for documents."""
    # Both tables are made on the host and copied. The copy does not wait for the GPU.
    short, long = (
        torch.tensor(scaling.pair_factors(long=long), dtype=like.dtype).to(
            like.device, non_blocking=True
        )
        for long in (False, True)
    )
    # One length for the whole batch decides for all positions, as in transformers.
    if isinstance(lengths, int):
        return long if lengths > scaling.original_positions else short
    # Each document has its own length: a short one in a long window keeps the short factors.
    return torch.where(lengths.unsqueeze(-1) > scaling.original_positions, long, short)


def _yarn_kept(scaling: RopeScaling, *, theta: float, like: Tensor) -> Tensor:
    """Return 1 for pairs before the ramp, 0 for those behind it; shape [pairs].

    Its ends are where pairs turn `beta_fast` and `beta_slow` times in the original length.
    """
    count = len(like)

    def pair_that_turns(times: float) -> float:
        return (
            count * math.log(scaling.original_positions / (times * 2 * math.pi)) / math.log(theta)
        )

    # Fast pairs have small indices, because speeds fall with the index.
    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    # transformers rounds the ends to whole pairs unless `truncate` is false.
    if scaling.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    # The upper bound is the one of transformers: the head's size minus 1, although pairs end at
    # half of it.
    first, last = max(first, 0), min(last, 2 * count - 1)
    # A ramp of width 0 would divide by zero. transformers adds 0.001 too.
    width = last - first or 0.001
    pairs = torch.arange(count, dtype=like.dtype, device=like.device)
    return 1 - ((pairs - first) / width).clamp(0, 1)


def rotate(x_BHSE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (first half, second half) of what turns by its position's angle."""
    cos, sin = rotary
    turned = 2 * cos.shape[-1]
    # The common case avoids a slice and a third part in the concatenation.
    if turned == x_BHSE.shape[-1]:
        # Halves, not neighbours: the layout of Llama's weights in transformers.
        first, second = x_BHSE.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    first, second = x_BHSE[..., :turned].chunk(2, dim=-1)
    # The remaining features pass unturned, as in Phi and GPT-NeoX.
    parts = (first * cos - second * sin, second * cos + first * sin, x_BHSE[..., turned:])
    return torch.cat(parts, dim=-1)


def rotate_neighbours(x_BHSE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (even, odd) by its position's angle; all of E turns."""
    cos, sin = rotary
    even, odd = x_BHSE[..., 0::2], x_BHSE[..., 1::2]
    # both of a product lie in the same new order, so the products are those of pairs in theirs
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
