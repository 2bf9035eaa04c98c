"""A device that computes or remembers one number wrongly is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from drumline_trainer.node_check import measure

CPU = torch.device("cpu")
MATRIX = 64
BYTES = 4096


def test_a_sound_device_is_right() -> None:
    product = measure.matmul(CPU, size=MATRIX, repeats=2)
    copy = measure.memory(CPU, size=BYTES, repeats=2)
    assert product.right
    assert copy.right
    assert product.rate > 0 < copy.rate


@pytest.mark.parametrize("call", [0, 2])
def test_one_wrong_element_of_one_product_is_seen(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, calls = torch.matmul, iter(range(100))

    def faulty(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = sound(a, b)
        if next(calls) == call:
            result[5, 7] += 1
        return result

    monkeypatch.setattr(torch, "matmul", faulty)
    assert not measure.matmul(CPU, size=MATRIX, repeats=3).right


@pytest.mark.parametrize("word", [0, BYTES // 16 - 1])
@pytest.mark.parametrize("copy", [0, 3, 5])
def test_one_wrong_bit_in_memory_is_seen(
    word: int, copy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound: Callable[..., Any] = torch.Tensor.copy_
    calls = iter(range(100))

    def faulty(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        result = sound(self, source)
        if next(calls) == copy:
            self[word] ^= 1 << 40
        return result

    monkeypatch.setattr(torch.Tensor, "copy_", faulty)
    # Four patterns are copied, then the addresses are laid down, and copied once.
    assert not measure.memory(CPU, size=BYTES, repeats=1).right
