"""A pool of buffers in an offload store, reused by groups of tensors whose sizes may vary.

The number of tokens per expert differs in every step, and so do the sizes of the activations that
autograd saves. The pool makes a buffer a little larger than needed, and reuses it for any group
that fits. It never keeps more buffers or bytes than were in use at once. To stay within this limit
it drops free buffers, the largest first, because a large one would be used for a small group. Once
the pool has seen all sizes, it makes few new buffers, and none if sizes repeat.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from drumline_trainer.sharding.storage import OffloadStore, OpenStore


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffer:
    """A part of the store. One group of tensors uses it at a time."""

    store: OffloadStore
    bytes: Tensor
    """uint8, at least as many bytes as the group requested."""


@dataclass(slots=True)
class _Amount:
    """A number of buffers, and their bytes."""

    buffers: int = 0
    bytes: int = 0

    def change(self, buffers: int, size: int) -> None:
        self.buffers += buffers
        self.bytes += size


class Buffers:
    """Buffers are taken by one thread, and given back by any."""

    def __init__(self, open_store: OpenStore) -> None:
        """Make each buffer in a store of its own, so that it can be freed alone."""
        self._open_store = open_store
        self._free: list[Buffer] = []
        self._given: deque[tuple[Buffer, int]] = deque()
        self._made, self._needed, self._most = _Amount(), _Amount(), _Amount()

    def take(self, size: int) -> Buffer:
        """Return the smallest free buffer of at least `size` bytes, or a new one."""
        self._collect_given()
        needed = rounded(size)
        self._needed.change(1, needed)
        self._most.buffers = max(self._most.buffers, self._needed.buffers)
        self._most.bytes = max(self._most.bytes, self._needed.bytes)
        fitting = next((buffer for buffer in self._free if buffer.bytes.numel() >= needed), None)
        if fitting is not None:
            self._free.remove(fitting)
        else:
            self._made.change(1, needed)
        self._drop()  # before more is made
        return fitting or self._make(needed)

    def give(self, buffer: Buffer, size: int) -> None:
        """Return a buffer that was taken for that size.

        Called when an object dies, which may be at any moment, also within `take`.
        """
        self._given.append((buffer, size))

    def _collect_given(self) -> None:
        while self._given:
            buffer, size = self._given.popleft()
            self._needed.change(-1, -rounded(size))
            self._free.append(buffer)
        self._free.sort(key=lambda buffer: buffer.bytes.numel())

    def _drop(self) -> None:
        made, most = self._made, self._most
        while self._free and (made.buffers > most.buffers or made.bytes > most.bytes):
            made.change(-1, -self._free.pop().bytes.numel())

    def _make(self, size: int) -> Buffer:
        store = self._open_store([size])
        return Buffer(store=store, bytes=store.empty((size,), dtype=torch.uint8))


def rounded(size: int) -> int:
    """Round up to the next eighth of a power of two: by an eighth at most."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
