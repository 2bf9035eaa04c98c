"""Tensors of a file in a bucket, read by ranges, with the calls of the library safetensors.

A part of a tensor is fetched as the pieces of the file that it consists of, several at once: whole
rows are one stretch. Of some columns the pieces are fetched where they are long, and else the rows
they lie in, as a request costs more than bytes do. Memory: the part, and the ranges on their way.

    with open_tensor_file(path) as file:  # one of a folder is opened by the library itself
        file.get_slice("lm_head.weight")[0:1000, :]
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from drumline_contract.buckets.path import AnyPath, BucketPath
from drumline_contract.regular_files import LFS_POINTER, LFS_WORDS, open_regular
from drumline_trainer.tensor_files.layout import (
    DTYPES,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    StoredTensor,
    as_bytes,
    parse_header,
)

_RANGE_BYTES: Final = 8 << 20
_RANGES_AT_ONCE: Final = 8
_LONG_BYTES: Final = 1 << 20
"""Minimum size of a piece that gets a request of its own."""
_FIRST_BYTES: Final = 64 << 10
"""Asked for first: the header of most files is in it."""


class SliceOfFile(Protocol):
    """A tensor of a file, of which parts can be read."""

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        ...

    def get_dtype(self) -> str:
        """Return safetensors' name of its type."""
        ...

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """Read this part."""
        ...


class OpenTensorFile(Protocol):
    """An open safetensors file; missing tensors raise SafetensorError."""

    def keys(self) -> list[str]:
        """Return the names of its tensors."""
        ...

    def get_slice(self, name: str) -> SliceOfFile:
        """Return a tensor without reading it."""
        ...

    def get_tensor(self, name: str) -> Tensor:
        """Read a whole tensor."""
        ...


def open_tensor_file(path: AnyPath) -> AbstractContextManager[OpenTensorFile]:
    """Open a file of a folder or of a bucket. Raises SafetensorError, OSError, StoreError."""
    if isinstance(path, BucketPath):
        return _open_ranges(path)
    with open_regular(path) as file:  # the library's errors do not say which one it was
        # The bound holds before the library allocates memory for the header.
        first = file.read(LENGTH_BYTES)
        _refuse_pointer(first)
        length = int.from_bytes(first, "little")
        if length > MAX_HEADER_BYTES:
            raise SafetensorError(f"a header of {length} bytes; at most {MAX_HEADER_BYTES}")
    opened = safe_open(path, framework="pt", device="cpu")
    return cast("AbstractContextManager[OpenTensorFile]", opened)


def _refuse_pointer(first: bytes) -> None:
    """Raise SafetensorError for the first bytes of a pointer, which would be a length."""
    if first and LFS_POINTER.startswith(first):
        raise SafetensorError(f"is {LFS_WORDS}")


@contextmanager
def _open_ranges(path: BucketPath) -> Generator[OpenTensorFile]:
    tensors = read_header(path)
    # One pool for the file, so that all its tensors share the limit on requests.
    with ThreadPoolExecutor(_RANGES_AT_ONCE, thread_name_prefix="ranges") as readers:
        yield _FileOfRanges(path=path, tensors=tensors, readers=readers)


def read_header(path: AnyPath) -> dict[str, StoredTensor]:
    """Return the place of each tensor in a file.

    Raises:
        SafetensorError: the header is malformed.
        OSError: the file cannot be read.
        StoreError: the store does not answer.
    """
    if isinstance(path, Path):
        # pread needs no seek and leaves the file's position alone.
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            return _header(lambda start, stop: os.pread(file.fileno(), stop - start, start), size)
    size = path.size()
    if size is None:
        raise FileNotFoundError(errno.ENOENT, "no such object in the bucket")
    return _header(lambda start, stop: path.read_range(start=start, stop=stop), size)


def _header(
    read: Callable[[int, int], bytes | memoryview], file_bytes: int
) -> dict[str, StoredTensor]:
    # One request covers length and header of most files.
    head = read(0, min(file_bytes, _FIRST_BYTES)) if file_bytes else b""
    _refuse_pointer(bytes(head[:LENGTH_BYTES]))
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    end = LENGTH_BYTES + length
    # The length is checked before it is used, because the file is not trusted.
    if len(head) < LENGTH_BYTES or end > file_bytes or length > MAX_HEADER_BYTES:
        raise SafetensorError(f"a header of {length} bytes in a file of {file_bytes}")
    # A long header costs a second request for the rest only.
    rest = read(len(head), end) if end > len(head) else b""
    return parse_header(bytes(head[LENGTH_BYTES:end]) + bytes(rest), file_bytes=file_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileOfRanges:
    """An `OpenTensorFile` of a bucket."""

    path: BucketPath
    tensors: dict[str, StoredTensor]
    readers: ThreadPoolExecutor

    def keys(self) -> list[str]:
        """See `OpenTensorFile`."""
        return list(self.tensors)

    def get_slice(self, name: str) -> _StoredInRanges:
        """See `OpenTensorFile`."""
        if name not in self.tensors:
            raise SafetensorError(f"{self.path}: {name} is missing")
        return _StoredInRanges(path=self.path, stored=self.tensors[name], readers=self.readers)

    def get_tensor(self, name: str) -> Tensor:
        """See `OpenTensorFile`."""
        return self.get_slice(name)[()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredInRanges:
    """A `SliceOfFile` of a bucket."""

    path: BucketPath
    stored: StoredTensor
    readers: ThreadPoolExecutor

    def get_shape(self) -> list[int]:
        """See `SliceOfFile`."""
        return list(self.stored.shape)

    def get_dtype(self) -> str:
        """See `SliceOfFile`."""
        return self.stored.dtype

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """See `SliceOfFile`."""
        shape = self.stored.shape
        # Missing dimensions are whole, as in the library.
        full = (*index, *(slice(None),) * (len(shape) - len(index)))
        spans = [range(*each.indices(size)) for each, size in zip(full, shape, strict=True)]
        part = torch.empty([len(span) for span in spans], dtype=DTYPES[self.stored.dtype])
        if part.numel():
            self._fill(part, spans, shape, at=self.stored.start)
        return part

    def _fill(self, part: Tensor, spans: list[range], shape: tuple[int, ...], *, at: int) -> None:
        """Read `spans` of a tensor of this shape that begins `at` this byte of the file."""
        # Case 1: only the first dimension is cut, so the part is one run of bytes.
        if all(len(span) == size for span, size in zip(spans[1:], shape[1:], strict=True)):
            row = math.prod(shape[1:]) * part.element_size()
            first = spans[0].start if spans else 0
            self._fetch(part, at=at + first * row)
            return
        row = math.prod(shape[1:]) * part.element_size()
        # Case 2: long pieces, or more than two dimensions. Recurse row by row.
        piece = part[0].numel() * part.element_size()
        if piece >= _LONG_BYTES or len(shape) > 2:
            for target, index in zip(part, spans[0], strict=True):
                self._fill(target, spans[1:], shape[1:], at=at + index * row)
            return
        # Case 3: short pieces of a matrix. Read whole rows and keep the columns, a bounded number
        # at once.
        columns = slice(spans[1].start, spans[1].stop)
        width, many = row // part.element_size(), max(1, _RANGES_AT_ONCE * _RANGE_BYTES // row)
        for start in range(0, len(part), many):
            target = part[start : start + many]
            rows = torch.empty((len(target), width), dtype=part.dtype)
            self._fetch(rows, at=at + (spans[0].start + start) * row)
            target.copy_(rows[:, columns])

    def _fetch(self, room: Tensor, *, at: int) -> None:
        """Fill a contiguous tensor with the bytes of the file from there on."""
        view = as_bytes(room).numpy()
        bounds = range(0, len(view), _RANGE_BYTES)

        def fetch(offset: int) -> None:
            # The last range can be shorter.
            stop = min(offset + _RANGE_BYTES, len(view))
            read = self.path.read_range(start=at + offset, stop=at + stop)
            # A short answer means that the object is shorter than its header states.
            if len(read) != stop - offset:
                raise SafetensorError(f"{self.path}: ends after byte {at + offset + len(read)}")
            view.data[offset:stop] = read

        # map yields in order and raises the first error of a range.
        for _ in self.readers.map(fetch, bounds):
            pass
