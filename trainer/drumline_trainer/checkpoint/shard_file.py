"""One rank's shard file: safetensors, written and digested in one pass, verified before reading.

Layout: `tensor_files.layout`. Memory: one chunk, whatever the size of the shard.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from torch import Tensor

from drumline_trainer.checkpoint.digests import hasher
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.tensor_files.layout import CHUNK_BYTES, file_chunks

_SYNC_BYTES = 1 << 30
_BYTES_BESIDE_NAME = 320
"""Maximum header bytes of a tensor without its name: eight lengths and two places of 20 digits, and
the keys."""


def write_shard_file(
    path: Path, tensors: Mapping[str, Tensor], *, check: Callable[[], None] = lambda: None
) -> FileRecord:
    """Write the tensors, fsync, and return size and digest of exactly what was written.

    Args:
        path: path of the file.
        tensors: tensors by name.
        check: called between chunks; what it raises ends the writing.

    Raises:
        OSError: the storage refused (full, gone, read-only).
    """
    digest = hasher()
    size = unsynced = 0
    with path.open("wb", buffering=0) as file:
        for chunk in file_chunks(tensors):
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
    """Return the record that `write_shard_file` would return, without writing."""
    digest = hasher()
    size = 0
    for chunk in file_chunks(tensors):
        check()
        digest.update(chunk)
        size += len(chunk)
    return FileRecord(size_bytes=size, digest=digest.hexdigest())


def verify_file(
    path: Path, expected: FileRecord, *, check: Callable[[], None] = lambda: None
) -> None:
    """Read the whole file once and compare; `check` is called now and then.

    Args:
        path: path of the file.
        expected: size and digest in the manifest.
        check: called between chunks. It may raise to cancel.

    Raises:
        CorruptCheckpointError: missing, not a regular file, of another size or digest.
    """
    verify_chunks(stored_chunks(path, expected), expected, name=path.name, check=check)


def verify_chunks(
    chunks: Iterable[memoryview],
    expected: FileRecord,
    *,
    name: str,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Raise CorruptCheckpointError unless these are the bytes of that file.

    Args:
        chunks: content of the file.
        expected: size and digest in the manifest.
        name: name of the file, for the message.
        check: called between chunks. It may raise to cancel.
    """
    for _ in verified(chunks, expected, name=name):
        check()


def verified(
    chunks: Iterable[memoryview], expected: FileRecord, *, name: str
) -> Iterator[memoryview]:
    """Yield the chunks of a whole file while computing its digest.

    Args:
        chunks: content of the file.
        expected: size and digest in the manifest.
        name: name of the file, for the message.

    Raises:
        CorruptCheckpointError: after the last one, if the digest differs.
    """
    digest = hasher(expected.algorithm)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != expected.digest:
        raise CorruptCheckpointError(f"{name}: digest differs from the manifest's")


def stored_chunks(path: Path, expected: FileRecord) -> Iterator[memoryview]:
    """Yield the bytes of a file in order. A view is valid until the next one.

    Raises:
        CorruptCheckpointError: missing, not a regular file, not readable or of another size.
    """
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.size_bytes:
            raise CorruptCheckpointError(
                f"{path.name}: {size} bytes, the manifest says {expected.size_bytes}"
            )
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            yield buffer[:count]


def read_bounded(path: Path, *, limit: int, folder: int | None = None) -> bytes:
    """Read a small file. With `folder` the path is relative to this open folder.

    Args:
        path: path of the file.
        limit: largest size in bytes.
        folder: descriptor of an open folder.

    Raises:
        CorruptCheckpointError: missing, not a regular file, or larger than `limit` bytes.
    """
    with _opened(path, folder=folder) as file:
        body = file.read(limit + 1)
    if len(body) > limit:
        raise CorruptCheckpointError(f"{path.name}: larger than {limit} bytes")
    return body


@contextmanager
def _opened(path: Path, *, folder: int | None = None) -> Generator[BufferedReader]:
    """Open a regular file only: no link out of the folder, no pipe that never ends.

    Raises:
        CorruptCheckpointError: it cannot be opened, or is not a regular file.
    """
    try:
        # O_NONBLOCK: opening a pipe must not hang before fstat unmasks it
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CorruptCheckpointError(f"{path.name}: not a regular file")
            yield file
    except OSError as error:
        raise CorruptCheckpointError(f"{path.name}: {error.strerror}") from error


def longest_header(names: Iterable[str]) -> int:
    """Return the most bytes that `file_header` of tensors of such names can have."""
    return 16 + sum(len(json.dumps(name)) + _BYTES_BESIDE_NAME for name in names)


def _write_all(descriptor: int, chunk: bytes | memoryview) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
