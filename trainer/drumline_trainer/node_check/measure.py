"""Speed and correctness of one device's products and memory.

Products are of small whole numbers, which floating point adds exactly in any order, TF32 too. The
sums of the rows and columns of A B are those of A (B 1) and (1 A) B, by integers on the processor
(Freivalds). Every repeat must give the same bits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

LARGEST: Final = 2
"""Largest number in a matrix. Sums of a hundred thousand products stay below 2^24."""
PATTERNS: Final = (0x5555_5555_5555_5555, -0x5555_5555_5555_5556, 0, -1)
"""Alternating bits, both ways; none; all."""
_WORD: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRate:
    """Speed of an operation, and whether every result was right."""

    rate: float
    """Operations or bytes a second, in the median."""
    right: bool


def matmul(device: torch.device, *, size: int, repeats: int) -> DeviceRate:
    """Measure products of two matrices of this size.

    Args:
        device: the GPU, or the CPU.
        size: rows and columns of the matrices.
        repeats: number of products.
    """
    # Phase 1: a fixed seed gives every node the same matrices.
    generator = torch.Generator().manual_seed(size)
    a, b = (
        torch.randint(-LARGEST, LARGEST + 1, (size, size), generator=generator) for _ in range(2)
    )
    # Phase 2: exact int64 sums on the CPU, in O(n²) (Freivalds).
    rows, columns = a @ b.sum(1), a.sum(0) @ b
    on_device = a.to(device, torch.float32), b.to(device, torch.float32)
    first = torch.matmul(*on_device)
    # fp64 sums of whole numbers below 2^53 are exact.
    right = bool(
        torch.equal(first.sum(1, dtype=torch.float64).long().cpu(), rows)
        and torch.equal(first.sum(0, dtype=torch.float64).long().cpu(), columns)
    )
    seconds: list[float] = []
    for _ in range(repeats):
        began = _finished(device)
        again = torch.matmul(*on_device)
        seconds.append(_finished(device) - began)
        # Silent corruption can differ between repeats, so compare the bits.
        right = right and torch.equal(again, first)
    # A product of square matrices of size n has 2·n³ operations.
    return DeviceRate(rate=2.0 * size**3 / statistics.median(seconds), right=right)


def memory(device: torch.device, *, size: int, repeats: int) -> DeviceRate:
    """Measure patterns that are written, copied and compared, and at last their own addresses.

    Args:
        device: the GPU, or the CPU.
        size: bytes of both buffers.
        repeats: number of copies.
    """
    words = max(1, size // (2 * _WORD))
    source = torch.empty(words, dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    right = True
    for pattern in PATTERNS:
        source.fill_(pattern)
        target.copy_(source)
        right = right and bool((target == pattern).all())
    # Addresses as values show a cell that answers for another one.
    source.copy_(torch.arange(words, device=device))
    seconds = [_timed(device, lambda: target.copy_(source)) for _ in range(repeats)]
    right = right and bool((target == torch.arange(words, device=device)).all())
    # A copy reads and writes each word.
    return DeviceRate(rate=2.0 * _WORD * words / statistics.median(seconds), right=right)


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    began = _finished(device)
    work()
    return _finished(device) - began


def _finished(device: torch.device) -> float:
    """Wait for the device's queued work, and return the time."""
    # Kernels are asynchronous, so a time without this wait is the launch time.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
