from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drumline_trainer.adapters.four_bit import (
    BLOCK,
    ROWS,
    Packed,
    levels,
    linear_of_packed,
    pack,
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


def round_trip(whole: Tensor, *, doubly: bool = False) -> Tensor:
    return pack(whole, doubly=doubly).weight(features=whole.shape[1], dtype=torch.float32)


def by_the_definition(whole: Tensor) -> npt.NDArray[np.float64]:
    """Doubly quantised, block by block, without torch."""
    values = whole.numpy().astype(np.float64)
    table, out = np.array(PUBLISHED), np.zeros_like(values)
    for top in range(0, len(values), ROWS):
        for left in range(0, values.shape[1], BLOCK):
            group = values[top : top + ROWS, left : left + BLOCK]
            step = np.abs(group).max() / 255
            for row, block in enumerate(group):
                most = np.abs(block).max()
                scale = max(1, round(most / step)) * step if most else 0.0
                nearest = np.abs(block[:, None] - table * scale).argmin(1)
                out[top + row, left : left + BLOCK] = table[nearest] * scale
    return out


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
    packed = pack(weight(8, 256), doubly=False)
    assert packed.steps is None
    assert packed.codes.nbytes + packed.scales.nbytes == 8 * 256 * 9 // 16


def test_doubly_quantised_it_takes_the_bits_of_the_paper() -> None:
    packed = pack(weight(2 * ROWS, 256), doubly=True)
    assert packed.steps is not None
    size = packed.codes.nbytes + packed.scales.nbytes + packed.steps.nbytes
    assert 8 * size / (2 * ROWS * 256) == 4 + 8 / 64 + 32 / (64 * 256)
    assert round(8 * size / (2 * ROWS * 256), 3) == 4.127


@pytest.mark.parametrize("doubly", [False, True])
@pytest.mark.parametrize("shape", [(300, 150), (1, 1)])
def test_there_is_room_for_what_is_packed(shape: tuple[int, int], doubly: bool) -> None:
    room = Packed.empty(*shape, doubly=doubly, device=torch.device("cpu"))
    packed = pack(weight(*shape), doubly=doubly)
    for mine, its in zip(
        (room.codes, room.scales, room.steps),
        (packed.codes, packed.scales, packed.steps),
        strict=True,
    ):
        assert (mine is None) == (its is None)
        if mine is not None and its is not None:
            assert (mine.shape, mine.dtype) == (its.shape, its.dtype)


def test_double_quantisation_is_that_of_its_definition() -> None:
    whole = weight(ROWS + 44, 150)
    whole[7] *= 1e-3  # a row that must not vanish beside its neighbours
    whole[8] = 0
    got = round_trip(whole, doubly=True).numpy()
    np.testing.assert_allclose(got, by_the_definition(whole), rtol=1e-5, atol=1e-7)
    assert got[7].any()
    assert not got[8].any()


def test_double_quantisation_adds_next_to_no_error() -> None:
    whole = weight(2 * ROWS, 256)
    once, twice = (float((round_trip(whole, doubly=d) - whole).norm()) for d in (False, True))
    assert once != twice
    assert twice <= 1.005 * once  # some 9 % of the weights' norm either way
    assert 0.08 < once / float(whole.norm()) < 0.1


def test_zeros_stay_zeros() -> None:
    assert not round_trip(torch.zeros(2, 100)).any()
    assert not round_trip(torch.zeros(2, 100), doubly=True).any()


def test_a_part_has_the_values_of_the_whole() -> None:
    whole = weight(6, 192)
    assert torch.equal(round_trip(whole[2:4]), round_trip(whole)[2:4])
    assert torch.equal(round_trip(whole[:, 64:]), round_trip(whole)[:, 64:])
    taller = weight(2 * ROWS, 128)
    doubly = round_trip(taller, doubly=True)
    assert torch.equal(round_trip(taller[ROWS:], doubly=True), doubly[ROWS:])
    assert torch.equal(round_trip(taller[:, 64:], doubly=True), doubly[:, 64:])


@pytest.mark.parametrize("doubly", [False, True])
def test_a_product_is_that_of_the_unpacked_weight_forward_and_backward(doubly: bool) -> None:
    packed = pack(weight(6, 70), doubly=doubly)
    plain_OI = packed.weight(features=70, dtype=torch.float32)
    first, second = (weight(4, 70).requires_grad_() for _ in range(2))
    mine, plain = linear_of_packed(first, packed), F.linear(second, plain_OI)
    assert torch.equal(mine, plain)
    mine.square().sum().backward()
    plain.square().sum().backward()
    assert first.grad is not None
    assert second.grad is not None
    assert torch.equal(first.grad, second.grad)
