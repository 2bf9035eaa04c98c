"""One rank's shard file: safetensors, written and digested in one pass, verified before reading.

Layout (the safetensors format): 8 bytes little-endian header length, a JSON header with type, shape
and byte range of every tensor, then the bytes. Memory: one chunk, whatever the size of the shard.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import torch
from safetensors import safe_open
from torch import Tensor

from drumline_trainer.checkpoint.digests import hasher
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.manifest import DTYPE_BYTES, FileRecord

_CHUNK_BYTES = 256 << 10
"""Digested and written at once: small enough to be in the processor's cache for both."""
_SYNC_BYTES = 1 << 30
_DEVICE_CHUNK_BYTES = 16 << 20
"""Copied from another device at once."""
_BYTES_BESIDE_NAME = 320
"""Of a tensor in a header, at most: eight lengths and two places of 20 digits, and the keys."""
_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}

DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
"""By safetensors' names."""


class StoredTensor(Protocol):
    """A tensor of a file, of which parts can be read."""

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        ...

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """Read this part."""
        ...


class TensorFile(Protocol):
    """An open safetensors file; missing tensors raise SafetensorError."""

    def get_slice(self, name: str) -> StoredTensor:
        """A tensor, not read yet."""
        ...

    def get_tensor(self, name: str) -> Tensor:
        """Read a whole tensor."""
        ...


def open_tensors(path: Path) -> AbstractContextManager[TensorFile]:
    """Open a file whose digest has been verified. Raises SafetensorError, OSError."""
    opened = safe_open(path, framework="pt", device="cpu")
    return cast("AbstractContextManager[TensorFile]", opened)


def dtype_name(tensor: Tensor) -> str:
    """Safetensors' name of the tensor's type."""
    return _DTYPE_NAMES[tensor.dtype]


def write_shard_file(
    path: Path, tensors: Mapping[str, Tensor], *, check: Callable[[], None] = lambda: None
) -> FileRecord:
    """Write the tensors, fsync, and return size and digest of exactly what was written.

    Args:
        path: of the file.
        tensors: by name.
        check: called between chunks; what it raises ends the writing.

    Raises:
        OSError: the storage refused (full, gone, read-only).
    """
    digest = hasher()
    size = unsynced = 0
    with path.open("wb", buffering=0) as file:
        for chunk in shard_chunks(tensors):
            check()
            digest.update(chunk)
            _write_all(file.fileno(), chunk)
            size += len(chunk)
            unsynced += len(chunk)
            if unsynced >= _SYNC_BYTES:  # else the last fsync takes minutes, without a sign of life
                os.fdatasync(file.fileno())
                unsynced = 0
        os.fsync(file.fileno())
    return FileRecord(size_bytes=size, digest=digest.hexdigest())


def shard_record(
    tensors: Mapping[str, Tensor], *, check: Callable[[], None] = lambda: None
) -> FileRecord:
    """The record that `write_shard_file` would return, without writing."""
    digest = hasher()
    size = 0
    for chunk in shard_chunks(tensors):
        check()
        digest.update(chunk)
        size += len(chunk)
    return FileRecord(size_bytes=size, digest=digest.hexdigest())


def verify_file(
    path: Path, expected: FileRecord, *, check: Callable[[], None] = lambda: None
) -> None:
    """Read the whole file once and compare; `check` is called now and then.

    Raises:
        CorruptCheckpointError: missing, not a regular file, of another size or digest.
    """
    digest = hasher(expected.algorithm)
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.size_bytes:
            raise CorruptCheckpointError(
                f"{path.name}: {size} bytes, the manifest says {expected.size_bytes}"
            )
        while chunk := file.read(_CHUNK_BYTES):
            check()
            digest.update(chunk)
    if digest.hexdigest() != expected.digest:
        raise CorruptCheckpointError(f"{path.name}: digest differs from the manifest's")


def read_bounded(path: Path, *, limit: int) -> bytes:
    """The whole of a small file.

    Raises:
        CorruptCheckpointError: missing, not a regular file, or larger than `limit` bytes.
    """
    with _opened(path) as file:
        body = file.read(limit + 1)
    if len(body) > limit:
        raise CorruptCheckpointError(f"{path.name}: larger than {limit} bytes")
    return body


@contextmanager
def _opened(path: Path) -> Generator[BinaryIO]:
    """A regular file and nothing else: no link out of the folder, no pipe that never ends."""
    try:
        # O_NONBLOCK: opening a pipe must not hang before fstat unmasks it
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CorruptCheckpointError(f"{path.name}: not a regular file")
            yield file
    except OSError as error:
        raise CorruptCheckpointError(f"{path.name}: {error.strerror}") from error


def shard_header(tensors: Mapping[str, Tensor]) -> bytes:
    """The first bytes of a file that holds these tensors, one after another."""
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * DTYPE_BYTES[dtype_name(tensor)]
        header[name] = {
            "dtype": dtype_name(tensor),
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format aligns the data to 8 bytes
    return len(encoded).to_bytes(8, "little") + encoded


def longest_header(names: Iterable[str]) -> int:
    """Bytes that `shard_header` of tensors of such names has at most."""
    return 16 + sum(len(json.dumps(name)) + _BYTES_BESIDE_NAME for name in names)


def shard_size(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the file that holds these tensors."""
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return len(shard_header(tensors)) + held


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes in order, without a copy where it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def shard_chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of the file in order."""
    yield shard_header(tensors)
    for tensor in tensors.values():
        flat = as_bytes(tensor)
        for start in range(0, flat.numel(), _DEVICE_CHUNK_BYTES):
            view = flat[start : start + _DEVICE_CHUNK_BYTES].cpu().numpy().data
            for offset in range(0, len(view), _CHUNK_BYTES):
                yield view[offset : offset + _CHUNK_BYTES]


def _write_all(descriptor: int, chunk: bytes | memoryview) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
