"""Our fp8 and 4-bit numbers are torchao's, up to how each divides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

from drumline_trainer.adapters.four_bit import BLOCK, ROWS, levels, pack
from drumline_trainer.numerics.fp8 import BACKWARD, FORWARD, scaled, scaled_by_rows

ALIKE = 0.99
"""Of the numbers; theirs multiply by the reciprocal of what ours divide by, which rounds twice."""


def numbers(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(256, 512, generator=generator).to(dtype)


def share_alike(ours: Tensor, theirs: Tensor) -> float:
    """Of equal ones; all others are neighbours."""
    apart = (ours.view(torch.uint8).int() - theirs.view(torch.uint8).int()).abs()
    assert apart.max() <= 1
    return (apart == 0).float().mean().item()


@pytest.mark.parametrize("dtype", [FORWARD, BACKWARD])
def test_a_tensor_has_the_same_scale_and_values(dtype: torch.dtype) -> None:
    x = numbers(torch.bfloat16)
    scale = tensor_to_scale(x, dtype)
    ours = scaled(x, dtype)
    torch.testing.assert_close(ours.scale, 1 / scale.float())
    assert share_alike(ours.values, to_fp8_saturated(x.float() * scale, dtype)) > ALIKE


def test_so_have_rows() -> None:
    x = numbers(torch.bfloat16)
    scale = tensor_to_scale(
        x, FORWARD, scaling_granularity=ScalingGranularity.AXISWISE, axiswise_dim=-1
    )
    ours = scaled_by_rows(x)
    torch.testing.assert_close(ours.scale, 1 / scale.float())
    assert share_alike(ours.values, to_fp8_saturated(x.float() * scale, FORWARD)) > ALIKE


def test_four_bits_are_the_same_levels_and_lose_as_little() -> None:
    weight = numbers(torch.float32)
    theirs, ours = to_nf4(weight, BLOCK, ROWS), pack(weight, doubly=True)
    torch.testing.assert_close(torch.tensor(levels()), theirs.nf4, rtol=0, atol=1e-4)
    alike = (theirs.quantized_data.view_as(ours.codes) == ours.codes).float().mean()
    assert alike > ALIKE
    whole = ours.weight(features=weight.shape[1], dtype=torch.float32)
    lost = [(each - weight).square().mean() for each in (whole, theirs.get_original_weight())]
    assert lost[0] <= 1.01 * lost[1]
