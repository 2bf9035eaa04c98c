"""A folder of text files as one sequence of bytes, read piecewise.

Only names and sizes are kept in memory, so a corpus may be larger than RAM; the operating system's
page cache is the cache. The files are listed once, sorted by path, so every rank that sees the same
folder reads the same bytes. A file that changes during a run is an error, never a silently
different sample.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drumline_trainer.config import ConfigError, DataConfig

PYTHON_STDLIB = "python-stdlib"
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
"""Folders in the standard library with installed packages, tests or generated files."""


class CorpusChangedError(RuntimeError):
    """A text file has changed since the run listed it."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Files laid end to end as a `TokenStream`: its tokens are bytes, its documents are files."""

    folder: Path
    paths: tuple[str, ...]
    """Relative to the folder, sorted; empty files are left out."""
    ends: tuple[int, ...]
    """Byte offset at which each file ends."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.ends[-1] if self.ends else 0

    @property
    def vocabulary(self) -> int:
        """Number of different bytes."""
        return 256

    def tokens(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """`length` bytes from `start`, as numbers. Raises as `read`."""
        return np.frombuffer(self.read(start, length), dtype=np.uint8).astype(np.int64)

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Positions in start..stop-1 at which a file begins."""
        first, last = bisect_left(self.ends, start), bisect_left(self.ends, stop)
        return np.array([*([0] if start <= 0 < stop else []), *self.ends[first:last]], np.int64)

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Do nothing: the operating system reads ahead."""

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def fingerprint(self) -> str:
        """Digest of the names and sizes; if it changes, samples refer to other text."""
        listing = "".join(f"{p}\0{e}\n" for p, e in zip(self.paths, self.ends, strict=True))
        return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`, over as many files as it takes.

        Raises:
            CorpusChangedError: a file vanished or shrank since it was listed.
        """
        pieces: list[bytes] = []
        index = bisect_right(self.ends, start)
        stop = start + length
        while start < stop:
            begin = self.ends[index - 1] if index else 0
            piece_end = min(stop, self.ends[index])
            pieces.append(self._read_file(index, start - begin, piece_end - start))
            start = piece_end
            index += 1
        return b"".join(pieces)

    def _read_file(self, index: int, offset: int, length: int) -> bytes:
        path = self.folder / self.paths[index]
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(offset)
                piece = file.read(length)
        except OSError as error:
            raise CorpusChangedError(f"{path}: {error.strerror}") from error
        if len(piece) != length:
            raise CorpusChangedError(f"{path}: shorter than when the run began")
        return piece


def open_corpus(config: DataConfig) -> Corpus:
    """List the files that `config` names.

    Raises:
        ConfigError: no such folder, or no text in it.
    """
    if config.source == PYTHON_STDLIB:
        folder, pattern = Path(sysconfig.get_path("stdlib")), "*.py"
        candidates = _stdlib_sources(folder)
    else:
        folder, pattern = Path(config.source), config.pattern
        candidates = folder.glob(pattern)
    if not folder.is_dir():
        raise ConfigError(f"data.source: {folder} is not a folder in this container")
    listed = sorted(
        (path.relative_to(folder).as_posix(), path.stat().st_size)
        for path in candidates
        if path.is_file()
    )
    files = [(path, size) for path, size in listed if size]
    if not files:
        raise ConfigError(f"data.pattern: no text under {folder} matches {pattern!r}")
    return Corpus(
        folder=folder,
        paths=tuple(path for path, _ in files),
        ends=tuple(accumulate(size for _, size in files)),
    )


def _stdlib_sources(folder: Path) -> Iterator[Path]:
    """Walk without entering skipped folders: site-packages alone may hold 100,000 files."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        yield from (Path(parent, name) for name in files if name.endswith(".py"))
