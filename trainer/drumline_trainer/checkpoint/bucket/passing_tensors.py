"""Tensors taken out of a safetensors file while its bytes pass by, in any pieces.

The bytes are not verified yet, so nothing of the header is trusted. What is kept must not be used
before the digest of the whole file is known to be right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.intervals import Interval
from drumline_trainer.tensor_files.layout import DTYPES

_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A tensor of the file of which something is wanted."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class PassingTensors:
    """Takes what is wanted out of one file.

    Args:
        wanted: parts of its tensors.
        file: its name, for errors.
        longest_header: in bytes; a longer one is not read.
    """

    def __init__(self, wanted: Sequence[Interval], *, file: str, longest_header: int) -> None:
        self._longest_header = longest_header
        self._file = file
        self._wanted: dict[str, list[Interval]] = {}
        for interval in wanted:
            self._wanted.setdefault(interval.name, []).append(interval)
        self._head = bytearray()
        self._ahead: list[_Stored] | None = None
        """By place, the next one last; None until the header has passed."""
        self._at = 0
        """Where the next byte lies, counted from the end of the header."""
        self._whole = torch.empty(0, dtype=torch.uint8)
        """The bytes of the next tensor, as far as they have passed."""
        self._kept: list[tuple[Interval, Tensor]] = []

    def feed(self, part: memoryview) -> None:
        """The next bytes of the file.

        Raises:
            CorruptCheckpointError: the header is none, or of other tensors.
        """
        if not self._wanted:
            return
        if self._ahead is None:
            part = self._feed_header(part)
        while self._ahead and part:
            part = self._feed_tensor(self._ahead[-1], part)

    def kept(self) -> list[tuple[Interval, Tensor]]:
        """What was wanted. Raises CorruptCheckpointError where the file does not hold it all."""
        if self._wanted:
            raise CorruptCheckpointError(f"{self._file}: {next(iter(self._wanted))} is missing")
        return self._kept

    def _feed_header(self, part: memoryview) -> memoryview:
        """Read the header once it is whole; what follows it."""
        self._head += part
        if len(self._head) < _LENGTH_BYTES:
            return part[:0]
        length = int.from_bytes(self._head[:_LENGTH_BYTES], "little")
        if length > self._longest_header:
            raise CorruptCheckpointError(f"{self._file}: a header of {length} bytes")
        end = _LENGTH_BYTES + length
        if len(self._head) < end:
            return part[:0]
        try:
            header: dict[str, Any] = json.loads(self._head[_LENGTH_BYTES:end])
            stored = [_stored(name, header[name]) for name in self._wanted]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptCheckpointError(f"{self._file}: no header: {error!r}") from None
        for tensor in stored:
            self._check_shape(tensor)
        self._ahead = sorted(stored, key=lambda tensor: tensor.start, reverse=True)
        for later, earlier in pairwise(self._ahead):
            if later.start < earlier.stop:
                raise CorruptCheckpointError(f"{self._file}: {later.name} overlaps another tensor")
        rest = memoryview(bytes(self._head[end:]))
        self._head.clear()
        return rest

    def _check_shape(self, tensor: _Stored) -> None:
        size = tensor.dtype.itemsize
        for length in tensor.shape:
            size *= length
        if (
            size != tensor.stop - tensor.start
            or tensor.start < 0
            or any(
                tensor.shape != interval.piece.box.shape for interval in self._wanted[tensor.name]
            )
        ):
            raise CorruptCheckpointError(f"{self._file}: {tensor.name} has another shape")

    def _feed_tensor(self, tensor: _Stored, part: memoryview) -> memoryview:
        """Go on to the tensor, or with it; what is left of the part behind it."""
        before = min(max(tensor.start - self._at, 0), len(part))
        self._at += before
        part = part[before:]
        if self._at < tensor.start:
            return part
        if self._at == tensor.start:
            self._whole = torch.empty(tensor.stop - tensor.start, dtype=torch.uint8)
        taken = min(tensor.stop - self._at, len(part))
        offset = self._at - tensor.start
        self._whole.numpy().data[offset : offset + taken] = part[:taken]
        self._at += taken
        if self._at == tensor.stop:
            self._keep(tensor)
        return part[taken:]

    def _keep(self, tensor: _Stored) -> None:
        assert self._ahead is not None  # noqa: S101 - the tensor was there
        self._ahead.pop()
        whole = self._whole.view(tensor.dtype).view(tensor.shape)
        self._whole = torch.empty(0, dtype=torch.uint8)
        for interval in self._wanted.pop(tensor.name):
            values = whole[interval.common.slices_within(interval.piece.box)]
            # a copy, where it is a part: else the whole would stay in memory with it
            kept = values if values.numel() == whole.numel() else values.clone()
            self._kept.append((interval, kept))


def _stored(name: str, raw: Any) -> _Stored:
    start, stop = raw["data_offsets"]
    return _Stored(
        name=name,
        dtype=DTYPES[raw["dtype"]],
        shape=tuple(int(length) for length in raw["shape"]),
        start=int(start),
        stop=int(stop),
    )
