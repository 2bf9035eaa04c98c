"""Buffers for groups that are of another size in every step: few, and few bytes."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from drumline_trainer.memory.buffers import Buffers, rounded
from drumline_trainer.memory.offload_store import HostMemoryStore

GROUPS, STEPS = 8, 40
KB = 1 << 10


class Ledger(HostMemoryStore):
    """Knows which of its tensors live."""

    def __init__(self) -> None:
        super().__init__(pinned=False)
        self.alive: dict[int, int] = {}
        self.made = 0

    def empty(self, shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
        tensor = super().empty(shape, dtype=dtype)
        self.made += 1
        self.alive[self.made] = tensor.nbytes
        weakref.finalize(tensor, self.alive.pop, self.made)
        return tensor


def some(draw: random.Random) -> list[int]:
    return [int(16 * KB * draw.uniform(0.7, 1.3)) for _ in range(GROUPS)]


def any_at_all(draw: random.Random) -> list[int]:
    return [int(16 * KB * draw.uniform(0.1, 3)) for _ in range(GROUPS)]


def every_other_small(draw: random.Random) -> list[int]:
    return [3 * KB if n % 2 else int(16 * KB * draw.uniform(0.9, 1.1)) for n in range(GROUPS)]


@pytest.mark.parametrize(
    ("sizes", "more"), [(some, 1.3), (any_at_all, 1.5), (every_other_small, 1.3)]
)
def test_no_more_is_kept_than_one_step_needs(
    sizes: Callable[[random.Random], list[int]], more: float
) -> None:
    draw, ledger = random.Random(0), Ledger()
    buffers = Buffers(lambda _: ledger)
    most, early = 0, 0
    for step in range(STEPS):
        if step == STEPS // 2:
            early = ledger.made
        needed = sizes(draw)
        most = max(most, sum(needed))
        lent = [(buffers.take(size), size) for size in needed]
        assert len({item.bytes.data_ptr() for item, _ in lent}) == GROUPS  # nobody shares one
        assert all(item.bytes.numel() >= size for item, size in lent)
        assert len(ledger.alive) == GROUPS
        assert sum(ledger.alive.values()) <= more * most
        while lent:
            buffers.give(*lent.pop())
    assert ledger.made - early < STEPS // 2 * GROUPS / 16  # almost all have been used before


def test_what_is_too_large_goes_at_the_next_need() -> None:
    ledger = Ledger()
    buffers = Buffers(lambda _: ledger)
    large, small = buffers.take(8 * KB), buffers.take(KB)
    buffers.give(small, KB)
    buffers.give(large, 8 * KB)
    del large, small
    take_a = buffers.take(2 * KB)  # in the large one, since it is there
    assert take_a.bytes.numel() == 8 * KB
    two = buffers.take(4 * KB)
    buffers.give(take_a, 2 * KB)
    buffers.give(two, 4 * KB)
    del take_a, two
    three = buffers.take(KB)
    assert three.bytes.numel() == 4 * KB
    assert sorted(ledger.alive.values()) == [4 * KB]  # 12 with the large one, and never were 10


def test_sizes_are_rounded_up_by_an_eighth_at_most() -> None:
    for size in range(1, 5000):
        assert size <= rounded(size) <= size * 9 / 8
    assert len({rounded(size) for size in range(1024, 2048)}) == 9
