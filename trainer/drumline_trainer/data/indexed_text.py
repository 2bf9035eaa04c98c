"""Megatron's indexed datasets: `NAME.bin` with tokens end to end, `NAME.idx` with what lies where.

    magic                9 bytes, MMIDIDX and two zeros
    version              uint64, 1
    type of the tokens   uint8, a code
    sequences, S         uint64
    documents + 1, D     uint64
    lengths              S x int32, in tokens
    places               S x int64, in bytes of the .bin
    documents            D x int64: the first sequence of each, then S

as Megatron-LM writes them (`megatron/core/datasets/indexed_dataset.py`); what may follow, for each
sequence one byte of its kind of input, is not read. All integers are little-endian. The tokenizer
is in neither file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError
from drumline_contract.regular_files import open_regular
from drumline_trainer.data.corpus import Corpus, corpus_of_files
from drumline_trainer.data.learned_spans import LearnedSpans
from drumline_trainer.data.records.tokenizer import LoadedTokenizer

_MAGIC: Final = b"MMIDIDX\x00\x00"
_HEADER: Final = struct.Struct("<9sQBQQ")
_TYPES: Final = {1: "<u1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""NumPy types by their code. The others are signed bytes and fractions, which no tokenizer writes.
"""
_INDEX, _TOKENS = ".idx", ".bin"


class IndexedTextError(ConfigError):
    """A file is not an indexed dataset, or its index belongs to another file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedText:
    """Tokens of one or several indexed datasets, as a `data.text_dataset.TokenStream`."""

    corpus: Corpus
    """The .bin files: whatever changes while a run reads it is an error."""
    type: np.dtype[np.integer]
    ends: npt.NDArray[np.int64]
    """Position after each document, ascending."""
    vocabulary: int
    tokenizer_sha256: str | None

    @property
    def size(self) -> int:
        """Tokens in all."""
        return self.corpus.size // self.type.itemsize

    @property
    def learned(self) -> LearnedSpans | None:
        """None: every token is."""
        return None

    def tokens(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """Return `length` tokens from `start`; shape [length], int64.

        Raises:
            CorpusChangedError: a file vanished or changed since it was opened.
            IndexedTextError: a token is none of the tokenizer's.
        """
        # A .bin has no header, so a token's byte offset is its position times its width.
        width = self.type.itemsize
        raw = self.corpus.read(start * width, length * width)
        tokens = np.frombuffer(raw, dtype=self.type).astype(np.int64)
        # The index has no vocabulary. A wrong tokenizer is found here, before an embedding lookup
        # fails on a GPU without a message.
        wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary)]
        if wrong.size:
            raise IndexedTextError(
                f"data.source: {self.corpus.folder} holds token {wrong[0]} at {start} or after,"
                f" and data.tokenizer has {self.vocabulary}; name the tokenizer.json that these"
                " files were made with"
            )
        return tokens

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return positions in start..stop-1 where documents begin; shape [documents], int64."""
        # Ends double as starts of the next documents. `searchsorted` needs no array of starts for
        # billions of documents.
        first, last = np.searchsorted(self.ends, [start, stop])
        begins = self.ends[first:last]
        # The last end is the size of the text, where no document begins.
        begins = begins[begins < self.size]
        return np.concatenate(([0], begins)) if start <= 0 < stop else begins

    def document_ends(self) -> npt.NDArray[np.int64]:
        """Return the position after each document; shape [documents], int64."""
        return self.ends

    def fingerprint(self) -> str:
        """Hash names, sizes and content of the tokens. Above 256 MiB the content is sampled."""
        return self.corpus.fingerprint()

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Do nothing: the operating system reads ahead."""

    def close(self) -> None:
        """Do nothing: no file stays open."""


def indexed_files(source: Path) -> list[Path]:
    """Return the indices that `source` names: all of a folder, or one, with or without `.idx`."""
    if source.is_dir():
        # File systems list in any order. Sorted names give all ranks the same positions.
        return sorted(path for path in source.iterdir() if _is_index(path))
    # Megatron's `--data-path` takes the path without a suffix. Names may contain dots, so
    # `with_suffix` would cut them.
    named = source if source.suffix == _INDEX else source.with_name(source.name + _INDEX)
    return [named] if _is_index(named) else []


def open_indexed(indices: list[Path], *, tokenizer: LoadedTokenizer) -> IndexedText:
    """Read the indices; the tokens are read as they are asked for.

    Raises:
        IndexedTextError: a file is damaged, or the files have tokens of different types.
    """
    opened = [_read_index(path) for path in indices]
    # One corpus has one width. Tokens of two widths cannot share positions.
    types = {each.type for each in opened}
    if len(types) > 1:
        raise IndexedTextError(
            f"data.source: {indices[0].parent} holds tokens of the types"
            f" {', '.join(sorted(each.name for each in types))}; put each type into a folder of"
            " its own and mix them (data.mixture)"
        )
    # `begins` has one entry more than `opened`: the total size, which `zip` drops.
    begins = (0, *accumulate(each.size for each in opened))
    ends = np.concatenate([each.ends + begin for each, begin in zip(opened, begins, strict=False)])
    return IndexedText(
        corpus=corpus_of_files(indices[0].parent, [path.with_suffix(_TOKENS) for path in indices]),
        type=opened[0].type,
        ends=np.unique(ends),  # empty documents end where the one before them does
        vocabulary=tokenizer.vocabulary,
        tokenizer_sha256=tokenizer.sha256,
    )


def _is_index(path: Path) -> bool:
    if path.suffix != _INDEX or path.name.startswith(".") or not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """Content of an .idx file."""

    type: np.dtype[np.integer]
    size: int
    """Tokens in its .bin."""
    ends: npt.NDArray[np.int64]


def _read_index(path: Path) -> _Index:
    """Read an index.

    Raises:
        IndexedTextError: it is not readable, or inconsistent with the tokens.
    """
    try:
        # The size of the .bin is read first. A missing .bin is then reported like a missing .idx.
        tokens_bytes = path.with_suffix(_TOKENS).stat().st_size
        with open_regular(path) as file:
            # Lengths and offsets of billions of sequences exceed host memory, so the kernel pages
            # them in.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise IndexedTextError(f"data.source: {error.filename}: {error.strerror}") from error
    try:
        return _parsed(content, tokens_bytes=tokens_bytes)
    except ValueError as error:
        raise IndexedTextError(
            f"data.source: {path} is not the index of {path.with_suffix(_TOKENS).name}: {error}"
        ) from error


def _parsed(content: mmap.mmap, *, tokens_bytes: int) -> _Index:
    """Parse an index. Only the documents' ends are kept in memory, for billions of sequences.

    Raises:
        ValueError: counts or offsets contradict each other, or the size of the .bin.
    """
    # Phase 1: header. Every count is checked against the file size before an array is made of it.
    if len(content) < _HEADER.size:
        raise ValueError(f"it has {len(content)} bytes, which is less than a header")
    _, version, code, sequences, documents = _HEADER.unpack_from(content)
    if version != 1:
        raise ValueError(f"its version is {version}, not 1")
    if code not in _TYPES:
        raise ValueError(f"its tokens are of type {code}, which are no whole numbers from 0 on")
    # 12 bytes per sequence: an int32 length and an int64 offset. Longer files may hold modes of
    # multimodal sequences.
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if len(content) < needed:
        raise ValueError(f"it has {len(content)} bytes, and its counts say {needed}")
    kind = np.dtype(_TYPES[code])
    at = _HEADER.size
    # Phase 2: arrays. `frombuffer` does not copy, and only the lengths are widened, because their
    # sum exceeds int32.
    lengths = np.frombuffer(content, "<i4", sequences, at).astype(np.int64)
    places = np.frombuffer(content, "<i8", sequences, at + 4 * sequences)
    firsts = np.frombuffer(content, "<i8", documents, at + 12 * sequences)
    # Phase 3: consistency. A sequence ends at the sum of the lengths up to it.
    stops = lengths.cumsum()
    # Without gaps a position in the file is a position in the stream, so offsets need not be kept.
    if lengths.min(initial=0) < 0 or not np.array_equal(places, (stops - lengths) * kind.itemsize):
        raise ValueError("its sequences do not lie end to end")
    size = int(stops[-1]) if sequences else 0
    if size * kind.itemsize != tokens_bytes:
        raise ValueError(f"it is of {size * kind.itemsize} bytes, and the file has {tokens_bytes}")
    # D includes the final entry S, so one document has D = 2. An index without documents is
    # rejected.
    whole = documents > 1 and firsts[0] == 0 and firsts[-1] == sequences
    if not whole or (np.diff(firsts) < 0).any():
        raise ValueError("its documents are not all of its sequences in order")
    # `firsts[1:]` are the sequences after each document. The prepended 0 turns them into token
    # positions.
    return _Index(type=kind, size=size, ends=np.concatenate(([0], stops))[firsts[1:]])
