"""Buffers at home that are used again, by groups whose sizes need not repeat.

What experts are sent differs in every step, and so does what is kept of them. A buffer is made a
little larger than it is needed, and serves whatever fits into it. No more of them are kept than
were in use at once, and no more bytes than were needed at once: what is free goes before, the
largest first, since it would be lent for something small. Once all sizes have been seen, few are
made: none, where they repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drumline_trainer.memory.offload_store import Home


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffer:
    """Lent to one at a time."""

    home: Home
    bytes: Tensor
    """At least as many as were asked for."""


@dataclass(slots=True)
class _Amount:
    """Of buffers, and of bytes."""

    buffers: int = 0
    bytes: int = 0

    def change(self, buffers: int, size: int) -> None:
        self.buffers += buffers
        self.bytes += size


class Buffers:
    """Asked by one thread, given back to by any."""

    def __init__(self, home: Callable[[Sequence[int]], Home]) -> None:
        """Make each at a home of its own, so that it can go alone."""
        self._home = home
        self._free: list[Buffer] = []
        self._given: deque[tuple[Buffer, int]] = deque()
        self._made, self._needed, self._most = _Amount(), _Amount(), _Amount()

    def take(self, size: int) -> Buffer:
        """The smallest that is free and has so many bytes, or a new one."""
        self._sort_in()
        needed = rounded(size)
        self._needed.change(1, needed)
        self._most.buffers = max(self._most.buffers, self._needed.buffers)
        self._most.bytes = max(self._most.bytes, self._needed.bytes)
        fitting = next((one for one in self._free if one.bytes.numel() >= needed), None)
        if fitting is not None:
            self._free.remove(fitting)
        else:
            self._made.change(1, needed)
        self._drop()  # before more is made
        return fitting or self._make(needed)

    def give(self, buffer: Buffer, size: int) -> None:
        """It was taken for that size, and is free.

        Called when an object dies, which may be at any moment, also within `take`.
        """
        self._given.append((buffer, size))

    def _sort_in(self) -> None:
        while self._given:
            buffer, size = self._given.popleft()
            self._needed.change(-1, -rounded(size))
            self._free.append(buffer)
        self._free.sort(key=lambda one: one.bytes.numel())

    def _drop(self) -> None:
        made, most = self._made, self._most
        while self._free and (made.buffers > most.buffers or made.bytes > most.bytes):
            made.change(-1, -self._free.pop().bytes.numel())

    def _make(self, size: int) -> Buffer:
        place = self._home([size])
        return Buffer(home=place, bytes=place.empty((size,), dtype=torch.uint8))


def rounded(size: int) -> int:
    """Up to the next eighth of a power of two: by an eighth at most."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
