"""Tensors taken out of a safetensors file while its bytes pass by, in any pieces.

They come a block of rows at a time, so that no tensor is in memory whole. A block that lies within
one piece is a view of the piece. The bytes are not verified yet, so nothing of the header is
trusted, and what is taken out must not be used before the digest of the whole file is known to be
right.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.exchange import BLOCK_BYTES
from drumline_trainer.tensor_files.layout import DTYPES, LENGTH_BYTES

with warnings.catch_warnings():  # torch warns once of bytes that a tensor must not change
    warnings.simplefilter("ignore")
    torch.frombuffer(bytes(1), dtype=torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTensor:
    """A tensor of the file as its manifest has it."""

    dtype: torch.dtype
    box: Box
    """Part of the global tensor that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some rows of a tensor of the file."""

    name: str
    box: Box
    """Part of the global tensor that these rows are."""
    values: Tensor
    """The rows' values, valid until the next piece is fed. They must not be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A tensor of the file of which something is wanted."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A block that has not passed yet."""

    name: str
    box: Box
    start: int
    stop: int


class PassingTensors:
    """Takes the wanted parts of tensors out of one file.

    Args:
        wanted: tensors, by name.
        file: its name, for errors.
        longest_header: limit in bytes. A longer header is not read.
    """

    def __init__(
        self, wanted: Mapping[str, WantedTensor], *, file: str, longest_header: int
    ) -> None:
        self._longest_header = longest_header
        self._file = file
        self._wanted = dict(wanted)
        self._head = bytearray()
        self._ahead: Iterator[_Rows] | None = None
        """Wanted rows in file order. None until the header has been read."""
        self._next: _Rows | None = None
        self._at = 0
        """Offset of the next byte, counted from the end of the header."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        """Bytes of the next block that were read so far."""

    def feed(self, part: memoryview) -> Iterator[Block]:
        """Yield the blocks that end within the next bytes of the file.

        Raises:
            CorruptCheckpointError: the header is malformed, or lists other tensors.
        """
        if not self._wanted:
            return
        if self._ahead is None:
            part = self._feed_header(part)
        while self._next is not None and part:
            rows = self._next
            part = self._feed_rows(rows, part)
            if self._at == rows.stop:
                yield self._block(rows)

    def finish(self) -> None:
        """Raise CorruptCheckpointError where the file did not hold all that is wanted."""
        missing = next(iter(self._wanted)) if self._ahead is None and self._wanted else ""
        missing = missing if self._next is None else self._next.name
        if missing:
            raise CorruptCheckpointError(f"{self._file}: {missing} is missing")

    def _feed_header(self, part: memoryview) -> memoryview:
        """Read the header once it is whole; what follows it."""
        part = self._collect_head(part, LENGTH_BYTES)
        if len(self._head) < LENGTH_BYTES:
            return part
        length = int.from_bytes(self._head[:LENGTH_BYTES], "little")
        # Checked before the bytes are collected: a damaged length must not fill the memory.
        if length > self._longest_header:
            raise CorruptCheckpointError(f"{self._file}: a header of {length} bytes")
        end = LENGTH_BYTES + length
        part = self._collect_head(part, end)
        if len(self._head) < end:
            return part
        try:
            header: dict[str, Any] = json.loads(self._head[LENGTH_BYTES:])
            stored = [self._checked(name, header[name]) for name in self._wanted]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptCheckpointError(f"{self._file}: no header: {error!r:.200}") from None
        # Bytes pass once and in file order, so that two wanted tensors must not share any.
        stored.sort(key=lambda tensor: tensor.start)
        for earlier, later in pairwise(stored):
            if later.start < earlier.stop:
                raise CorruptCheckpointError(f"{self._file}: {later.name} overlaps another tensor")
        self._ahead = (rows for tensor in stored for rows in self._in_rows(tensor))
        self._next = next(self._ahead, None)
        self._head.clear()
        return part

    def _collect_head(self, part: memoryview, end: int) -> memoryview:
        """Collect the first `end` bytes of the file; what follows them."""
        missing = max(0, end - len(self._head))
        self._head += part[:missing]
        return part[missing:]

    def _checked(self, name: str, raw: Any) -> _Stored:
        wanted = self._wanted[name]
        start, stop = (int(place) for place in raw["data_offsets"])
        if DTYPES[raw["dtype"]] != wanted.dtype:
            raise CorruptCheckpointError(f"{self._file}: {name} has another type")
        size = wanted.box.elements * wanted.dtype.itemsize
        if tuple(raw["shape"]) != wanted.box.shape or start < 0 or stop - start != size:
            raise CorruptCheckpointError(f"{self._file}: {name} has another shape")
        return _Stored(name=name, start=start, stop=stop)

    def _in_rows(self, tensor: _Stored) -> Iterator[_Rows]:
        box = self._wanted[tensor.name].box
        size = tensor.stop - tensor.start
        if size <= BLOCK_BYTES or not box.shape:
            yield _Rows(name=tensor.name, box=box, start=tensor.start, stop=tensor.stop)
            return
        # Large tensors pass in runs of rows, so that the memory does not grow with the tensor.
        row_bytes = size // box.shape[0]
        step = max(1, BLOCK_BYTES // row_bytes)
        for row in range(0, box.shape[0], step):
            rows = box.rows(row, min(row + step, box.shape[0]))
            start = tensor.start + row * row_bytes
            yield _Rows(
                name=tensor.name, box=rows, start=start, stop=start + rows.shape[0] * row_bytes
            )

    def _feed_rows(self, rows: _Rows, part: memoryview) -> memoryview:
        """Skip to these rows or read them. Return the remaining part behind them."""
        before = min(max(rows.start - self._at, 0), len(part))
        self._at += before
        part = part[before:]
        if self._at < rows.start:
            return part
        size = rows.stop - rows.start
        if self._at == rows.start:
            # A run that is here whole is not copied.
            if 0 < size <= len(part):
                self._bytes = torch.frombuffer(part, dtype=torch.uint8, count=size)
                self._at = rows.stop
                return part[size:]
            self._bytes = torch.empty(size, dtype=torch.uint8)
        taken = min(rows.stop - self._at, len(part))
        offset = self._at - rows.start
        self._bytes.numpy().data[offset : offset + taken] = part[:taken]
        self._at += taken
        return part[taken:]

    def _block(self, rows: _Rows) -> Block:
        assert self._ahead is not None  # noqa: S101 - the rows came of it
        dtype = self._wanted[rows.name].dtype
        data, self._bytes = self._bytes, torch.empty(0, dtype=torch.uint8)
        values = (data.clone() if data.data_ptr() % dtype.itemsize else data).view(dtype)
        self._next = next(self._ahead, None)
        return Block(name=rows.name, box=rows.box, values=values.view(rows.box.shape))
