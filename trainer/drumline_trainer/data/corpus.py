"""A folder of text files as one sequence of bytes, read piecewise.

Only names, sizes and times are kept in memory, so a corpus may be larger than RAM; the operating
system's page cache is the cache. The files are listed once, sorted by path, so every rank that sees
the same folder reads the same bytes. A file that changes during a run, be its size the same, is an
error, never a silently different sample.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sysconfig
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from drumline_contract import HUB_SCHEME
from drumline_contract.config import ConfigError, DataConfig
from drumline_contract.config.data import check_source
from drumline_contract.regular_files import open_regular
from drumline_contract.shapes.hugging_face import from_hub
from drumline_trainer.data.contents import HEAD_BYTES, content_digest, other_format
from drumline_trainer.data.learned_spans import LearnedSpans

PYTHON_STDLIB = "python-stdlib"
_MAX_EXAMINED = 1000
_MAX_NAMES_EXAMINED = 10_000
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
    modified: tuple[int, ...] = ()
    """When each file was last changed, in nanoseconds; empty: not watched."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.ends[-1] if self.ends else 0

    @property
    def vocabulary(self) -> int:
        """Number of different bytes."""
        return 256

    @property
    def tokenizer_sha256(self) -> str | None:
        """None: the tokens are bytes."""
        return None

    @property
    def learned(self) -> LearnedSpans | None:
        """None: every byte is."""
        return None

    def document_ends(self) -> npt.NDArray[np.int64]:
        """Return the position after each file; shape [files], int64."""
        return np.array(self.ends, dtype=np.int64)

    def tokens(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """Return `length` bytes from `start` as numbers, shape [length]. Raises as `read`."""
        # PyTorch has no embedding lookup for uint8 indices, so bytes are widened to int64.
        return np.frombuffer(self.read(start, length), dtype=np.uint8).astype(np.int64)

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the positions in start..stop-1 at which a file begins; shape [files], int64."""
        # A file begins at the end of its predecessor. `bisect_left` on `ends` finds starts in
        # [start, stop) without a second array.
        first, last = bisect_left(self.ends, start), bisect_left(self.ends, stop)
        return np.array([*([0] if start <= 0 < stop else []), *self.ends[first:last]], np.int64)

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Do nothing: the operating system reads ahead."""

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def only(self, names: Collection[str]) -> Corpus:
        """Return the corpus of the named files only."""
        # Order and times are kept, so the digest of a subset equals that of a folder with only
        # these files.
        kept = [number for number, name in enumerate(self.paths) if name in names]
        sizes = [end - begin for begin, end in pairwise((0, *self.ends))]
        return Corpus(
            folder=self.folder,
            paths=tuple(self.paths[number] for number in kept),
            ends=tuple(accumulate(sizes[number] for number in kept)),
            modified=tuple(self.modified[number] for number in kept) if self.modified else (),
        )

    def fingerprint(self) -> str:
        """Digest of names, sizes and content; if it changes, samples refer to other text.

        Of more than 256 MiB the content counts by samples. Raises as `read`.
        """
        return _fingerprint(self)

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, over as many files as it takes.

        Raises:
            CorpusChangedError: a file vanished or changed since it was listed.
        """
        pieces: list[bytes] = []
        # `bisect_right`: a start that equals the end of a file belongs to the next file.
        index = bisect_right(self.ends, start)
        stop = start + length
        # Each round reads one file. A window over many small files costs one open per file.
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
            # No buffer: Python would read 8 KiB or more per window, and the page cache already
            # holds the rest.
            with open_regular(path, buffering=0) as file:
                file.seek(offset)
                piece = file.read(length)
                # The time is taken from the open descriptor, after the read. A rename during the
                # read cannot show the time of another file.
                modified = os.fstat(file.fileno()).st_mtime_ns
        except OSError as error:
            raise CorpusChangedError(f"{path}: {error.strerror}") from error
        if len(piece) != length:
            raise CorpusChangedError(f"{path}: shorter than when the run began")
        if self.modified and modified != self.modified[index]:
            raise CorpusChangedError(f"{path}: changed since the run began")
        return piece


@functools.lru_cache(maxsize=4)
def _fingerprint(corpus: Corpus) -> str:
    """Return a digest that is kept, as a recovery in place opens the same files again."""
    # File names may hold bytes that are not UTF-8. "surrogateescape" hashes them as they are.
    listing = "".join(f"{p}\0{e}\n" for p, e in zip(corpus.paths, corpus.ends, strict=True))
    digest = hashlib.sha256(listing.encode("utf-8", "surrogateescape"))
    # 32 of 64 hex digits are enough: the digest detects accidents and not attacks.
    digest.update(content_digest(corpus.read, size=corpus.size).encode())
    return digest.hexdigest()[:32]


def local_source(source: str) -> str:
    """Return `source`, or the place of its files, which are fetched from the Hugging Face Hub.

    Raises:
        ConfigError: the Hub has no such data set, or refuses.
        StoreError: the Hub does not answer.
    """
    if not source.startswith(HUB_SCHEME):
        return source
    check_source(source, field="data.source")
    return str(from_hub(source, field="data.source").place)


def open_corpus(config: DataConfig) -> Corpus:
    """List the files that `config` names.

    Raises:
        ConfigError: no such folder, or no text in it.
    """
    # Phase 1: candidates of the three kinds of sources.
    if config.source == PYTHON_STDLIB:
        folder, pattern = Path(sysconfig.get_path("stdlib")), "*.py"
        candidates = _stdlib_sources(folder)
    elif Path(config.source).is_file():
        # A single file is a folder with one name, so that paths stay relative.
        folder, pattern = Path(config.source).parent, Path(config.source).name
        candidates = iter([Path(config.source)])
    else:
        folder, pattern = Path(config.source), config.pattern
        candidates = (path for path in folder.glob(pattern) if _is_wanted(path, folder, pattern))
    if not folder.is_dir():
        raise ConfigError(f"data.source: {folder} is not a folder in this container")
    # Phase 2: sort by path. File systems list in any order, and all ranks must agree on positions.
    listed = sorted(
        (path.relative_to(folder).as_posix(), path.stat()) for path in candidates if path.is_file()
    )
    # An empty file would have the same end as its predecessor, and `bisect` would find a file
    # without bytes.
    files = [(path, status) for path, status in listed if status.st_size]
    if not files:
        raise ConfigError(
            f"data.pattern: no text under {folder} matches {pattern!r}{_instead_of(folder)}"
        )
    return _corpus(folder, files)


def is_hidden(name: PurePath) -> bool:
    """Return whether a file or one of its folders is hidden, such as `.git/HEAD` and `._a.txt`.

    Editors, Git and macOS write them beside data. A mounted ConfigMap has its files in a hidden
    folder and, once more, as links to them.
    """
    return any(part.startswith(".") for part in name.parts)


def _is_wanted(path: Path, folder: Path, pattern: str) -> bool:
    """Return whether a file is not hidden, or the pattern asks for hidden ones."""
    return is_hidden(PurePath(pattern.removeprefix("./"))) or not is_hidden(
        path.relative_to(folder)
    )


def _instead_of(folder: Path) -> str:
    """Return advice from the names of files that are there."""
    # The advice is bounded: a folder of a million files must not delay an error message.
    names = islice(folder.rglob("*"), _MAX_NAMES_EXAMINED)
    there = (path for path in names if path.is_file() and not is_hidden(path.relative_to(folder)))
    suffixes = Counter(path.suffix for path in there if path.suffix)
    if not suffixes:
        return ""
    # Most files first, then by name: equal counts give the same message on every rank.
    suffix, count = min(suffixes.items(), key=lambda counted: (-counted[1], counted[0]))
    return f"; of the files there {count} would by '**/*{suffix}'"


def corpus_of_files(folder: Path, paths: Iterable[Path]) -> Corpus:
    """Return a corpus of these files of a folder, in this order, without empty ones.

    Raises:
        OSError: a file does not exist.
    """
    listed = ((path.relative_to(folder).as_posix(), path.stat()) for path in paths)
    return _corpus(folder, [(name, status) for name, status in listed if status.st_size])


def _corpus(folder: Path, files: Sequence[tuple[str, os.stat_result]]) -> Corpus:
    return Corpus(
        folder=folder,
        paths=tuple(path for path, _ in files),
        ends=tuple(accumulate(status.st_size for _, status in files)),
        modified=tuple(status.st_mtime_ns for _, status in files),
    )


def refuse_other_formats(corpus: Corpus) -> None:
    """Refuse files that are not text, which would be read as bytes of text.

    At most 1,000 files are checked, spread over the folder.

    Raises:
        ConfigError: a file is not text, or not readable.
    """
    # An even step checks files of the whole folder. The first 1,000 names are often of one kind.
    step = -(-len(corpus.paths) // _MAX_EXAMINED)
    for name in corpus.paths[::step]:
        path = corpus.folder / name
        try:
            with open_regular(path, buffering=0) as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise ConfigError(f"data.source: {path}: {error.strerror}") from error
        kind = other_format(name, head)
        if kind is not None:
            raise ConfigError(
                f"data.source: {path} is {kind}, and would be read as the bytes of a text; name the"
                " files of text in data.pattern, or make token shards of their text with python -m"
                " drumline_trainer.data.tokenize"
            )


def _stdlib_sources(folder: Path) -> Iterator[Path]:
    """Walk without entering skipped folders: site-packages alone may hold 100,000 files."""
    for parent, folders, files in os.walk(folder):
        # `os.walk` honours an assignment to the slice and then skips these folders.
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        yield from (Path(parent, name) for name in files if name.endswith(".py"))
