"""Token shards read as one text, verified against their index.

Sizes of all files are compared when the shards are opened. Digests are compared when bytes enter
the process, in blocks of 256 KiB: a block of a folder at its first read, a streamed block at each
fetch. So a damaged shard is an error at the first sample that would have been wrong, and no rank
reads a whole data set only to verify it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError
from drumline_trainer.data.learned_spans import LearnedSpans, moved
from drumline_trainer.data.shards.index import (
    INDEX_FILE,
    INDEX_LIMIT_BYTES,
    SUM_BYTES,
    ShardFile,
    ShardIndex,
    ShardRecord,
    parse_index,
)

_END_TYPE = np.dtype("<u4")


class ShardMismatchError(ConfigError):
    """A file differs from the index. A retry does not help; another copy does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBlock:
    """A piece of a file, and the SHA-256 it must have."""

    file: str
    number: int
    start: int
    stop: int
    sha256: str

    def check(self, content: bytes | memoryview, *, where: str) -> None:
        """Raise ShardMismatchError if this is not the block's content."""
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise ShardMismatchError(
                f"data.source: {where}/{self.file} is damaged: bytes {self.start} to {self.stop}"
                f" have the SHA-256 {digest} and must have {self.sha256}; copy the file again"
            )


class ShardStore(Protocol):
    """Holds the files of shards. The content that `block` returns has been verified."""

    @property
    def location(self) -> str:
        """For messages; without secrets."""
        ...

    def read_file(self, name: str, *, limit: int) -> bytes:
        """Read a small file.

        Raises:
            ConfigError: it does not exist, or is longer than `limit` bytes.
        """
        ...

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes, by name."""
        ...

    def block(self, block: ShardBlock) -> bytes | memoryview:
        """Return the content of a block.

        Raises:
            ShardMismatchError: it differs from the index.
        """
        ...

    def prefetch(self, blocks: Iterable[ShardBlock]) -> None:
        """Begin to fetch blocks that will be read soon."""
        ...

    def close(self) -> None:
        """Close files, connections and threads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardText:
    """The shards of an index as `data.text_dataset.TokenStream`."""

    index: ShardIndex
    store: ShardStore
    stops: tuple[int, ...]
    """Token position after each shard."""
    _sums: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _ends: dict[str, npt.NDArray[np.uint32]] = field(
        default_factory=dict[str, npt.NDArray[np.uint32]]
    )
    _learned: list[LearnedSpans] = field(default_factory=list[LearnedSpans])
    """One item: the learned spans of all shards. Empty until they are first read."""

    @property
    def size(self) -> int:
        """Tokens in all."""
        return self.stops[-1]

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary, from the index."""
        return self.index.vocabulary

    @property
    def tokenizer_sha256(self) -> str | None:
        """SHA-256 of the tokenizer, from the index."""
        return self.index.tokenizer_sha256

    @property
    def paired(self) -> bool:
        """True if the texts are pairs, from the index."""
        return self.index.paired

    def tokens(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """Return `length` tokens from `start`; shape [length], int64.

        Raises:
            ShardMismatchError: a block is damaged, or a token is beyond the vocabulary.
        """
        pieces: list[bytes | memoryview] = []
        for shard, first, last in self._parts(start, start + length):
            for block in self._blocks(shard, first, last):
                content = memoryview(self.store.block(block))
                pieces.append(content[max(0, first - block.start) : last - block.start])
        raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        tokens = np.frombuffer(raw, dtype=f"<u{self.index.token_bytes}").astype(np.int64)
        if tokens.max() >= self.index.vocabulary:
            raise ShardMismatchError(
                f"data.source: {self.store.location} holds token {tokens.max()} at {start} or"
                f" after, beyond its vocabulary of {self.index.vocabulary}; tokenize the text again"
            )
        return tokens

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return positions in start..stop-1 where documents begin; shape [documents], int64."""
        starts: list[npt.NDArray[np.int64]] = []
        for number in range(bisect_right(self.stops, start), len(self.stops)):
            begin = self._begin(number)
            if begin >= stop:
                break
            ends = self._document_ends(self.index.shards[number])
            low, high = np.searchsorted(ends, [max(0, start - begin), stop - begin])
            inside = ends[low:high].astype(np.int64) + begin
            starts.append(
                inside[inside < self.stops[number]]
            )  # the last end belongs to the next shard
            if begin >= start:
                starts.insert(len(starts) - 1, np.array([begin], dtype=np.int64))
        return np.concatenate(starts) if starts else np.empty(0, dtype=np.int64)

    def document_ends(self) -> npt.NDArray[np.int64]:
        """Return the position after each document; this reads the ends of all shards."""
        shards = enumerate(self.index.shards)
        ends = [self._document_ends(shard).astype(np.int64) + self._begin(n) for n, shard in shards]
        return np.concatenate(ends)

    @property
    def learned(self) -> LearnedSpans | None:
        """The trained tokens. None: all.

        Raises:
            ShardMismatchError: the stored spans differ from the index.
        """
        if self.index.shards[0].learned is None:
            return None
        if not self._learned:
            spans = [self._spans(shard) for shard in self.index.shards]
            begins = [self._begin(number) for number in range(len(spans))]
            self._learned.append(LearnedSpans.of(moved(spans, begins)))
        return self._learned[0]

    def fingerprint(self) -> str:
        """Digest of the digests of the tokens, and of what is learned."""
        listing = "".join(f"{s.tokens.sha256}\n" for s in self.index.shards)
        listing += "".join(f"{s.learned.sha256}\n" for s in self.index.shards if s.learned)
        return hashlib.sha256(listing.encode()).hexdigest()[:32]

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Begin to fetch the blocks of these (start, length) ranges."""
        self.store.prefetch(
            block
            for start, length in ranges
            for shard, first, last in self._parts(start, start + length)
            for block in self._blocks(shard, first, last)
        )

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _begin(self, number: int) -> int:
        return self.stops[number - 1] if number else 0

    def _parts(self, start: int, stop: int) -> Iterator[tuple[ShardRecord, int, int]]:
        """Yield the shards of these positions, each with a range of bytes: first, stop."""
        width = self.index.token_bytes
        number = bisect_right(self.stops, start)
        while start < stop:
            begin, until = self._begin(number), min(stop, self.stops[number])
            yield self.index.shards[number], (start - begin) * width, (until - begin) * width
            start, number = until, number + 1

    def _blocks(self, shard: ShardRecord, first: int, last: int) -> Iterator[ShardBlock]:
        size = self.index.block_bytes
        sums = self._sums_of(shard)
        for number in range(first // size, -(-last // size)):
            yield ShardBlock(
                file=shard.tokens.name,
                number=number,
                start=number * size,
                stop=min((number + 1) * size, shard.tokens.bytes),
                sha256=sums[number * SUM_BYTES : (number + 1) * SUM_BYTES].hex(),
            )

    def _sums_of(self, shard: ShardRecord) -> bytes:
        if shard.sums.name not in self._sums:
            self._sums[shard.sums.name] = self._verified(shard.sums)
        return self._sums[shard.sums.name]

    def _document_ends(self, shard: ShardRecord) -> npt.NDArray[np.uint32]:
        if shard.ends.name not in self._ends:
            content = self._verified(shard.ends)
            self._ends[shard.ends.name] = np.frombuffer(content, dtype=_END_TYPE)
        return self._ends[shard.ends.name]

    def _spans(self, shard: ShardRecord) -> npt.NDArray[np.int64]:
        if shard.learned is None:
            return np.empty((0, 2), dtype=np.int64)
        values = np.frombuffer(self._verified(shard.learned), dtype=_END_TYPE)
        return values[1 : 1 + 2 * int(values[0])].astype(np.int64).reshape(-1, 2)

    def _verified(self, record: ShardFile) -> bytes:
        content = self.store.read_file(record.name, limit=record.bytes)
        whole = ShardBlock(
            file=record.name, number=0, start=0, stop=record.bytes, sha256=record.sha256
        )
        whole.check(content, where=self.store.location)
        return content


def open_shards(store: ShardStore) -> ShardText:
    """Read the index and compare the sizes of all files with it.

    Raises:
        ConfigError: no index.
        ShardMismatchError: a file is absent or of another size.
    """
    try:
        index = parse_index(
            store.read_file(INDEX_FILE, limit=INDEX_LIMIT_BYTES), where=store.location
        )
        sizes = store.sizes()
        for record in (record for shard in index.shards for record in shard.files):
            _check_size(record, sizes.get(record.name), where=store.location)
    except BaseException:
        store.close()
        raise
    tokens = (shard.tokens.bytes // index.token_bytes for shard in index.shards)
    return ShardText(index=index, store=store, stops=tuple(accumulate(tokens)))


def _check_size(record: ShardFile, size: int | None, *, where: str) -> None:
    if size != record.bytes:
        what = "is absent" if size is None else f"has {size} bytes"
        raise ShardMismatchError(
            f"data.source: {where}/{record.name} {what} and must have {record.bytes} and the"
            f" SHA-256 {record.sha256}; copy the file again"
        )
