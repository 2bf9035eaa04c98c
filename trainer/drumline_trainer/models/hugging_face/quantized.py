"""Quantized weights as they are published: fp8 in blocks (DeepSeek-V3) and MXFP4 (GPT-OSS).

fp8: E4M3 in blocks of 128 x 128 that share a factor. A matrix of R x C has a second tensor beside
it, `weight_scale_inv`, of R/128 x C/128 factors in fp32, both rounded up: a weight is its number
times its block's factor. That product is exact in fp32 but for rounding, and needs more bits than
bf16 has.

MXFP4 of the OCP Microscaling Formats 1.0, 4 bits:

32 neighbours of a row share a power of two, an exponent of 8 bits with bias 127. Each of them is a
sign, two bits of exponent and one of mantissa, two to a byte, the lower half first. So a matrix
of R x C is R x C/32 x 16 bytes of blocks and R x C/32 bytes of scales, and every value is exact in
bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from drumline_contract.shapes.hugging_face import HuggingFaceError

_FACTORS = "_scale_inv"
_SIDE: Final = 128
"""Side of a block."""


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
        """Return a part in fp32; only these numbers and the factors of their blocks are read."""
        spans = [range(*each.indices(size)) for each, size in zip(part, self.shape, strict=True)]
        blocks = tuple(slice(span.start // _SIDE, -(-span.stop // _SIDE)) for span in spans)
        factors = self.factors[blocks].float()
        for dimension, span in enumerate(spans):
            first = span.start % _SIDE
            factors = factors.repeat_interleave(_SIDE, dim=dimension)
            factors = factors.narrow(dimension, first, len(span))
        return self.numbers[tuple(slice(span.start, span.stop) for span in spans)].float() * factors


def fp8_tensors(file_of: Mapping[str, Any]) -> dict[str, Fp8Tensor]:
    """Return the packed tensors by their unpacked names, which are the names of their numbers.

    Args:
        file_of: the open file of every tensor.

    Raises:
        HuggingFaceError: factors without numbers, or of shapes that do not fit.
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
    """Return the tensor unchanged.

    Raises:
        HuggingFaceError: it is fp8 and lacks its factors, or whole numbers of 8 bits.
    """
    if tensor.dtype == torch.int8:
        raise HuggingFaceError(
            f"{name}: whole numbers of 8 bits, which are packed weights; import the model in bf16"
            " or fp32"
        )
    if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise HuggingFaceError(f"{name}: {name}{_FACTORS} is missing")
    return tensor


_BLOCKS, _SCALES = "_blocks", "_scales"
_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BYTES: Final = 16
"""Bytes of a block."""
_BIAS: Final = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Tensor:
    """A stack of matrices in two tensors of a file, presented transposed, as it is named unpacked.

    Shapes: X matrices (experts), R rows and C columns of what is packed; unpacked X C R.
    """

    blocks: Any
    """A slice of a file, of shape X R C/32 16."""
    scales: Any
    """Likewise, of shape X R C/32."""
    parts: tuple[str, ...]
    """Names of both in the files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Unpacked."""
        stack, rows, blocks, _ = self.blocks.get_shape()
        return stack, blocks * 2 * _BYTES, rows

    def read_part(self, part: tuple[slice, ...]) -> Tensor:
        """Return a part in bf16; only the rows of these matrices are read, a matrix at a time."""
        matrices, columns, rows = part
        stack = range(*matrices.indices(self.shape[0]))
        unpacked = [
            _unpacked(
                self.blocks[index : index + 1, rows], self.scales[index : index + 1, rows]
            ).mT[:, columns]
            for index in stack
        ]
        return torch.cat(unpacked)


def packed_tensors(file_of: Mapping[str, Any]) -> dict[str, Mxfp4Tensor]:
    """Return the packed tensors by their unpacked names.

    Args:
        file_of: the open file of every tensor.

    Raises:
        HuggingFaceError: blocks without their scales, or of shapes that do not fit.
    """
    packed: dict[str, Mxfp4Tensor] = {}
    for name in file_of:
        bare = name.removesuffix(_BLOCKS)
        if bare == name:
            continue
        scales = f"{bare}{_SCALES}"
        if scales not in file_of:
            raise HuggingFaceError(f"{name}: {scales} is missing")
        each = Mxfp4Tensor(
            blocks=file_of[name].get_slice(name),
            scales=file_of[scales].get_slice(scales),
            parts=(name, scales),
        )
        shape, expected = each.blocks.get_shape(), [*each.scales.get_shape(), _BYTES]
        if (
            shape != expected
            or len(shape) != 4
            or {_type(each.blocks), _type(each.scales)} != {"U8"}
        ):
            raise HuggingFaceError(
                f"{name}: {_type(each.blocks)} of shape {tuple(shape)}, and MXFP4 with these scales"
                f" ({_type(each.scales)}) is U8 of shape {tuple(expected)}"
            )
        packed[bare] = each
    return packed


def _type(slice_of_file: Any) -> str:
    return str(slice_of_file.get_dtype())


def _unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """Unpack uint8 [experts, rows, columns/32, 16] and scales to bf16 [experts, rows, columns]."""
    table = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)])
    pairs = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1)
    factors = torch.exp2(scales.float() - _BIAS).unsqueeze(-1)
    return (table[pairs.int()].flatten(-2) * factors).flatten(-2).bfloat16()
