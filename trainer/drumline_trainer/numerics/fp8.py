"""Products in 8-bit floats (Micikevicius et al. 2022), scaled by matrices or by rows.

Every operand is scaled so that its largest magnitude is the type's, each time, and its
products are scaled back. Sums, weights and the optimizer's state stay as they are, and so do norms,
embeddings, the head, routers, stacked experts and attention itself.

tensorwise  one scale for an operand. e4m3 forward, which has three bits of mantissa and reaches
            448, and e5m2 for gradients, which has two and reaches 57,344: there reach matters more
rowwise     one for each row of the left operand and each column of the right one, the ones whose
            sums they are: a row with an outlier costs the others nothing. A row's reach is small,
            so all is e4m3. The backward pass sums along other dimensions than the forward pass and
            quantises weight and input again

Ranks of the tensor axis scale the parts that they hold, so their rounding differs from one rank's:
no exchange, and nothing larger than what rounding does anyway.

Where a GPU multiplies fp8 the operands go to `torch._scaled_mm`; elsewhere they are quantised,
turned back and multiplied in the type of the input: the same values but for the sums' order. This
repository's tests run the second way only; the first has not been run.

Shapes: B batch, S sequence, T = B·S tokens, I and O input and output features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from drumline_contract.config import Fp8Scaling
from drumline_contract.config.lora import PROJECTIONS
from drumline_trainer.numerics.replaced_linear import ReplacedLinear, replace_projections

FORWARD = torch.float8_e4m3fn
BACKWARD = torch.float8_e5m2
_MULTIPLE = 16
"""The GPU's products want every size to divide by it."""
_FIRST_CAPABILITY = (8, 9)
"""First compute capability of GPUs that multiply fp8."""


def multiply_in_fp8(stage: nn.Module, *, scaling: Fp8Scaling) -> None:
    """Let the projections of attention and feed-forward layers multiply in fp8, in place.

    Names of parameters and cuts stay.
    """
    replace_projections(stage, PROJECTIONS, lambda _, linear: Fp8Linear(linear, scaling=scaling))


class Fp8Linear(ReplacedLinear):
    """A linear layer whose three products, forward and backward, are of fp8 operands."""

    def __init__(self, linear: nn.Linear, *, scaling: Fp8Scaling) -> None:
        super().__init__(linear)
        self.scaling = scaling

    def product(self, x_BSI: Tensor) -> Tensor:
        """Multiply by the weight in fp8; shape [batch, sequence, out], in the type of x."""
        rowwise = self.scaling is Fp8Scaling.ROWWISE
        function = _RowwiseProduct if rowwise else _TensorwiseProduct
        assert self.weight is not None  # noqa: S101 - only packed layers are without
        return cast("Tensor", function.apply(x_BSI, self.used(self.weight)))


@dataclass(frozen=True, slots=True)
class Scaled:
    """A matrix in fp8, and what it is to be multiplied with."""

    values: Tensor
    scale: Tensor
    """fp32, of no dimension; or a column of one for each row, or a row of one for each column."""

    @property
    def mT(self) -> Scaled:  # noqa: N802 - as torch calls it
        """Transposed, without a copy."""
        return Scaled(self.values.mT, self.scale.mT if self.scale.dim() else self.scale)


def scaled(x: Tensor, dtype: torch.dtype) -> Scaled:
    """Quantise so that the largest magnitude becomes the type's largest."""
    # detach keeps amax out of the autograd graph.
    return _quantised(x, x.detach().abs().amax(), dtype)


def scaled_by_rows(x_MK: Tensor) -> Scaled:
    """Quantize `x` [M, K] to e4m3 with one fp32 scale per row [M, 1], for the left operand."""
    # K is the summed dimension, so one scale for each row leaves the sum as a factor.
    return _quantised(x_MK, x_MK.detach().abs().amax(1, keepdim=True), FORWARD)


def scaled_by_columns(x_KN: Tensor) -> Scaled:
    """Quantize `x` [K, N] to e4m3 with one fp32 scale per column [1, N], for the right operand."""
    return _quantised(x_KN, x_KN.detach().abs().amax(0, keepdim=True), FORWARD)


def _quantised(x: Tensor, largest: Tensor, dtype: torch.dtype) -> Scaled:
    most = torch.finfo(dtype).max
    # tiny keeps the scale of a zero matrix above 0, so that its values become 0 and not NaN.
    scale = (largest.float() / most).clamp(min=torch.finfo(torch.float32).tiny)
    # Clamp before the cast: e4m3fn has no infinity, and torch's cast of larger values gives NaN.
    return Scaled((x.float() / scale).clamp(-most, most).to(dtype), scale)


def product(left_MK: Scaled, right_KN: Scaled, *, dtype: torch.dtype) -> Tensor:
    """Multiply [M, K] by [K, N] in fp8; the result [M, N] is of this type.

    Args:
        left_MK: fp8 values and scales [M, K].
        right_KN: fp8 values and scales [K, N].
        dtype: dtype of the result.
    """
    sizes = (*left_MK.values.shape, *right_KN.values.shape)
    # cuBLASLt rejects sizes that are not multiples of 16.
    if has_fp8(left_MK.values.device) and not any(size % _MULTIPLE for size in sizes):
        return product_by_hardware(left_MK, right_KN, dtype=dtype)
    back = left_MK.values.to(dtype) @ right_KN.values.to(dtype)
    # Scales multiply as a row and a column, so the product of both is applied once.
    return (back * (left_MK.scale * right_KN.scale)).to(dtype)


def product_by_hardware(left_MK: Scaled, right_KN: Scaled, *, dtype: torch.dtype) -> Tensor:
    """Return the product [M, N] by fp8 units of a GPU.

    The left operand must be row-major, the right one column-major. Rowwise scales give bf16, and
    are fast only if sums are not carried in full precision.

    Args:
        left_MK: fp8 values and scales [M, K].
        right_KN: fp8 values and scales [K, N].
        dtype: dtype of the result.
    """
    return torch._scaled_mm(  # noqa: SLF001 - the only fp8 product # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] - the only fp8 product
        left_MK.values.contiguous(),
        # Transposed contiguous memory is column-major, as the kernel requires.
        right_KN.values.mT.contiguous().mT,
        scale_a=left_MK.scale.contiguous(),
        scale_b=right_KN.scale.contiguous(),
        out_dtype=dtype,
        use_fast_accum=left_MK.scale.dim() > 0,
    )


def has_fp8(device: torch.device) -> bool:
    """Return whether the device multiplies fp8 in hardware."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY


class _TensorwiseProduct(Function):
    @staticmethod
    def forward(ctx: Any, x_BSI: Tensor, weight_OI: Tensor) -> Tensor:
        x_TI, weight = scaled(x_BSI.flatten(0, -2), FORWARD), scaled(weight_OI, FORWARD)
        # The fp8 values are saved, a quarter of the fp32 input's memory.
        ctx.save_for_backward(x_TI.values, x_TI.scale, weight.values, weight.scale)
        ctx.shape = x_BSI.shape
        x_TO = product(x_TI, weight.mT, dtype=x_BSI.dtype)
        return x_TO.view(*x_BSI.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        dtype = gradients[0].dtype
        # Gradients have a larger range, so they use e5m2.
        g_TO = scaled(gradients[0].flatten(0, -2), BACKWARD)
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            weight_OI = Scaled(weight_values, weight_scale)
            of_input = product(g_TO, weight_OI, dtype=dtype).view(ctx.shape)
        if ctx.needs_input_grad[1]:
            # dW = gᵀ·x.
            of_weight = product(g_TO.mT, Scaled(x_values, x_scale), dtype=dtype)
        return of_input, of_weight


class _RowwiseProduct(Function):
    @staticmethod
    def forward(ctx: Any, x_BSI: Tensor, weight_OI: Tensor) -> Tensor:
        # Rowwise scales follow the summed dimension, which differs in backward. So the originals
        # are saved.
        ctx.save_for_backward(x_BSI, weight_OI)
        x_TI, weight_IO = scaled_by_rows(x_BSI.flatten(0, -2)), scaled_by_columns(weight_OI.mT)
        return product(x_TI, weight_IO, dtype=x_BSI.dtype).view(*x_BSI.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_BSI, weight_OI = ctx.saved_tensors
        dtype, g_TO = gradients[0].dtype, gradients[0].flatten(0, -2)
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            by_row, by_column = scaled_by_rows(g_TO), scaled_by_columns(weight_OI)
            # dx = g·W sums over O: scales by row of g and by column of W.
            of_input = product(by_row, by_column, dtype=dtype).view(x_BSI.shape)
        if ctx.needs_input_grad[1]:
            # dW = gᵀ·x sums over T: both operands are quantized again along T.
            by_row, by_column = scaled_by_rows(g_TO.mT), scaled_by_columns(x_BSI.flatten(0, -2))
            of_weight = product(by_row, by_column, dtype=dtype)
        return of_input, of_weight
