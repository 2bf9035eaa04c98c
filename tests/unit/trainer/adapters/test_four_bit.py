from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drumline_trainer.adapters.four_bit import (
    BLOCK,
    levels,
    linear_of_packed,
    pack,
    packed_shapes,
    unpack,
)

PUBLISHED = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
"""Appendix E of the paper."""


def weight(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns))


def round_trip(whole: Tensor) -> Tensor:
    return unpack(*pack(whole), features=whole.shape[1], dtype=torch.float32)


def test_the_levels_are_those_of_the_paper() -> None:
    assert levels() == pytest.approx(PUBLISHED, abs=1e-6)


@pytest.mark.parametrize("shape", [(3, 128), (5, 150), (2, 7), (1, 1)])
def test_every_weight_becomes_the_nearest_level_of_its_block(shape: tuple[int, int]) -> None:
    whole = weight(*shape)
    got = round_trip(whole)
    table = torch.tensor(PUBLISHED)
    for row, packed in zip(whole, got, strict=True):
        for block, values in zip(row.split(BLOCK), packed.split(BLOCK), strict=True):
            most = block.abs().max()
            nearest = (block[:, None] - table * most).abs().argmin(1)
            torch.testing.assert_close(values, table[nearest] * most, rtol=1e-6, atol=1e-6)
            assert (values - block).abs().max() <= most * (table.diff().max() / 2) * (1 + 1e-5)


def test_it_takes_nine_sixteenths_of_a_byte() -> None:
    codes, scales = pack(weight(8, 256))
    assert (codes.shape, scales.shape) == packed_shapes(8, 256)
    assert codes.nbytes + scales.nbytes == 8 * 256 * 9 // 16


def test_zeros_stay_zeros() -> None:
    assert not round_trip(torch.zeros(2, 100)).any()


def test_a_part_has_the_values_of_the_whole() -> None:
    whole = weight(6, 192)
    assert torch.equal(round_trip(whole[2:4]), round_trip(whole)[2:4])
    assert torch.equal(round_trip(whole[:, 64:]), round_trip(whole)[:, 64:])


def test_a_product_is_that_of_the_unpacked_weight_forward_and_backward() -> None:
    codes, scales = pack(weight(6, 70))
    plain_OI = unpack(codes, scales, features=70, dtype=torch.float32)
    first, second = (weight(4, 70).requires_grad_() for _ in range(2))
    mine, plain = linear_of_packed(first, codes, scales), F.linear(second, plain_OI)
    assert torch.equal(mine, plain)
    mine.square().sum().backward()
    plain.square().sum().backward()
    assert first.grad is not None
    assert second.grad is not None
    assert torch.equal(first.grad, second.grad)
