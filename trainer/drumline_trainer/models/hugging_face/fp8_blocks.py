"""Weights of 8 bits as DeepSeek-V3 is published: E4M3 in blocks of 128 x 128 that share a factor.

A matrix of R x C has a second tensor beside it, `weight_scale_inv`, of R/128 x C/128 factors in
fp32, both rounded up: a weight is its number times its block's factor. That product is exact in
fp32 but for rounding, and needs more bits than bf16 has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from drumline_trainer.shapes.hugging_face import HuggingFaceError

_FACTORS = "_scale_inv"
_SIDE: Final = 128
"""Of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Tensor:
    """A matrix in two tensors of a file, presented as it is named unpacked."""

    numbers: Any
    """A slice of a file, of shape R C."""
    factors: Any
    """Likewise, of shape R/128 C/128."""
    parts: tuple[str, ...]
    """Names of both in the files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Unpacked, the same."""
        return tuple(self.numbers.get_shape())

    def read_part(self, part: tuple[slice, ...]) -> Tensor:
        """In fp32; of the files only these numbers and the factors of their blocks are read."""
        spans = [range(*each.indices(size)) for each, size in zip(part, self.shape, strict=True)]
        blocks = tuple(slice(span.start // _SIDE, -(-span.stop // _SIDE)) for span in spans)
        factors = self.factors[blocks].float()
        for dimension, span in enumerate(spans):
            first = span.start % _SIDE
            factors = factors.repeat_interleave(_SIDE, dim=dimension)
            factors = factors.narrow(dimension, first, len(span))
        return self.numbers[tuple(slice(span.start, span.stop) for span in spans)].float() * factors


def fp8_tensors(file_of: Mapping[str, Any]) -> dict[str, Fp8Tensor]:
    """By the names of their numbers, which they have unpacked.

    Args:
        file_of: the open file of every tensor.

    Raises:
        HuggingFaceError: factors without numbers, or of shapes that do not belong together.
    """
    packed: dict[str, Fp8Tensor] = {}
    for factors in file_of:
        name = factors.removesuffix(_FACTORS)
        if name == factors:
            continue
        if name not in file_of:
            raise HuggingFaceError(f"{factors}: {name} is missing")
        each = Fp8Tensor(
            numbers=file_of[name].get_slice(name),
            factors=file_of[factors].get_slice(factors),
            parts=(name, factors),
        )
        kind, shape = str(each.numbers.get_dtype()), each.factors.get_shape()
        expected = [-(-size // _SIDE) for size in each.shape]
        if kind != "F8_E4M3" or len(each.shape) != 2 or shape != expected:
            raise HuggingFaceError(
                f"{name}: {kind} of shape {each.shape} with factors of shape {tuple(shape)};"
                f" in blocks of {_SIDE} it is F8_E4M3 with {tuple(expected)}"
            )
        packed[name] = each
    return packed


def unscaled(tensor: Tensor, name: str) -> Tensor:
    """The tensor itself. Raises HuggingFaceError where it lacks its factors."""
    if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise HuggingFaceError(f"{name}: {name}{_FACTORS} is missing")
    return tensor
