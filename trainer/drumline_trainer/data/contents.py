"""Contents of data files: a digest for a resume, and the detection of formats other than text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import xxhash

from drumline_contract.regular_files import LFS_POINTER, LFS_WORDS

_WHOLE_BYTES: Final = 256 << 20
"""Largest content that is digested completely. Of more, samples of this many bytes are digested, so
that a start does not read terabytes."""
_BLOCK_BYTES: Final = 64 << 10


def content_digest(read: Callable[[int, int], bytes], *, size: int) -> str:
    """Return a digest of `size` bytes as 32 hex digits.

    Up to 256 MiB all bytes are read, of more bytes 4,096 even samples.

    Args:
        read: returns the bytes at a start, of a length.
        size: number of bytes in all.
    """
    # The size is part of the digest. Above 256 MiB, two sizes could otherwise sample equal blocks.
    digest = xxhash.xxh3_128(f"{size}\n".encode())
    for start in _starts(size):
        digest.update(read(start, min(_BLOCK_BYTES, size - start)))
    return digest.hexdigest()


def _starts(size: int) -> Iterator[int]:
    # The whole content in blocks, so that memory stays at 64 KiB.
    if size <= _WHOLE_BYTES:
        yield from range(0, size, _BLOCK_BYTES)
        return
    samples = _WHOLE_BYTES // _BLOCK_BYTES
    last = size - _BLOCK_BYTES
    # Samples are spread evenly and include the first and the last block.
    yield from (last * number // (samples - 1) for number in range(samples))


_MAGIC: Final = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
    b"\x93NUMPY": "NumPy",
    b"\x89HDF": "HDF5",
    b"%PDF": "PDF",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    LFS_POINTER: LFS_WORDS,
}
"""First bytes of formats that data sets come in."""
_TAR: Final = (257, b"ustar")
HEAD_BYTES: Final = 512


def other_format(name: str, head: bytes) -> str | None:
    """Return the format of a file by its name and first bytes. None: plain text."""
    # Lines of JSON are text by their bytes, so only the name tells.
    if name.lower().endswith((".jsonl", ".ndjson", ".jsonlines")):
        return "JSON lines"
    # A tar has its magic word at byte 257, behind other fields of the first header.
    start, word = _TAR
    if head[start : start + len(word)] == word:
        return "tar"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
