"""The index of a folder of token shards: what each file must hold, to the byte.

    shards.json             this index, written last: a folder without it is unfinished
    shard-00000.bin         tokens, little-endian uint16 or uint32, documents end to end
    shard-00000.ends        where each document ends, in tokens from the shard's begin, uint32
    shard-00000.sums        the SHA-256 of each block of `block_bytes` of the .bin, 32 bytes each
    shard-00000.learned     of conversations: how many spans of learned tokens there are, then start
                            and stop of each, in tokens from the shard's begin, uint32

The index is trusted; everything else is verified against it. Documents do not cross shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from drumline_contract.config import ConfigError

INDEX_FILE = "shards.json"
INDEX_LIMIT_BYTES = 256 * 1024**2
FORMAT = "drumline-token-shards/1"
FORMAT_WITH_SPANS = "drumline-token-shards/2"
"""Format with spans. A trainer that does not support spans rejects it, because it would train on
prompts."""
FORMAT_WITH_PAIRS = "drumline-token-shards/3"
"""Format with pairs. A trainer that does not support pairs would train on rejected answers."""
_FORMATS = (FORMAT, FORMAT_WITH_SPANS, FORMAT_WITH_PAIRS)
TOKEN_TYPES = {"uint16": 2, "uint32": 4}
END_BYTES = 4
SUM_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A file with its size and digest."""

    name: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Raise ValueError for a name that leaves the folder, a size or a digest that is none."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a plain file name")
        if not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.name}: {self.sha256!r} is not a SHA-256 in hexadecimal")
        if self.bytes < 1:
            raise ValueError(f"{self.name}: cannot hold {self.bytes} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """The files of a shard."""

    tokens: ShardFile
    ends: ShardFile
    sums: ShardFile
    learned: ShardFile | None = None
    """None: every token is learned."""

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """All of them."""
        always = (self.tokens, self.ends, self.sums)
        return always if self.learned is None else (*always, self.learned)

    def encode(self) -> dict[str, Any]:
        """Return JSON values."""
        return {name: file for name, file in asdict(self).items() if file is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """Content of a folder of shards."""

    token_type: str
    vocabulary: int
    """Number of different tokens; every token is below it."""
    tokenizer_sha256: str
    """SHA-256 of the tokenizer.json."""
    end_of_text: int | None
    """Token that ends each document; None: documents end without one."""
    block_bytes: int
    made_from: str
    """Digest of the text and of all options that decide the shards."""
    shards: tuple[ShardRecord, ...]
    paired: bool = False
    """Documents are pairs, of which the first is preferred; no shard parts one."""

    def __post_init__(self) -> None:
        """Raise ValueError for counts that contradict each other."""
        if self.token_type not in TOKEN_TYPES:
            raise ValueError(f"token_type {self.token_type!r} is neither uint16 nor uint32")
        if not 1 <= self.vocabulary <= 256**self.token_bytes:
            raise ValueError(f"vocabulary {self.vocabulary} does not fit {self.token_type}")
        if self.block_bytes < 1 or self.block_bytes % self.token_bytes:
            raise ValueError(f"block_bytes {self.block_bytes} is not a number of whole tokens")
        if not self.shards:
            raise ValueError("there are no shards")
        if len({shard.learned is None for shard in self.shards}) > 1:
            raise ValueError("some shards say what is learned, and some do not")
        if self.paired and any(
            shard.learned is None or shard.ends.bytes % (2 * END_BYTES) for shard in self.shards
        ):
            raise ValueError("a shard of pairs has half a pair, or does not say what is learned")
        for shard in self.shards:
            blocks = -(-shard.tokens.bytes // self.block_bytes)
            if shard.tokens.bytes % self.token_bytes or shard.ends.bytes % END_BYTES:
                raise ValueError(f"{shard.tokens.name}: not a number of whole tokens")
            if shard.sums.bytes != blocks * SUM_BYTES:
                raise ValueError(
                    f"{shard.sums.name}: {blocks} blocks have other than this many sums"
                )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return TOKEN_TYPES[self.token_type]

    @property
    def tokens(self) -> int:
        """In all shards."""
        return sum(shard.tokens.bytes for shard in self.shards) // self.token_bytes

    @property
    def documents(self) -> int:
        """In all shards."""
        return sum(shard.ends.bytes for shard in self.shards) // END_BYTES

    def encode(self) -> bytes:
        """Encode as JSON. The totals are for human readers; `parse_index` computes them itself."""
        plain = self.shards[0].learned is None
        values = {
            "format": FORMAT if plain else FORMAT_WITH_SPANS,
            "tokens": self.tokens,
            "documents": self.documents,
            **asdict(self),
            "shards": [shard.encode() for shard in self.shards],
        }
        if values.pop("paired"):  # the format says it
            values["format"] = FORMAT_WITH_PAIRS
        return json.dumps(values, indent=1).encode() + b"\n"


def parse_index(encoded: bytes, *, where: str) -> ShardIndex:
    """Decode an index of `ShardIndex.encode`.

    Raises:
        ConfigError: it is not an index, or inconsistent.
    """
    try:
        raw = json.loads(encoded)
        if raw["format"] not in _FORMATS:
            raise ValueError(f"the format is {raw['format']!r}, not {FORMAT!r}")  # noqa: TRY301 - reported as every other defect of the index
        return _index(raw)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        detail = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"data.source: {where}/{INDEX_FILE} is not an index of token shards: {detail}"
        ) from error


def _index(raw: Mapping[str, Any]) -> ShardIndex:
    end_of_text = raw["end_of_text"]
    shards = cast("list[Mapping[str, Any]]", raw["shards"])
    index = ShardIndex(
        token_type=raw["token_type"],
        vocabulary=_whole(raw["vocabulary"]),
        tokenizer_sha256=str(raw["tokenizer_sha256"]),
        end_of_text=None if end_of_text is None else _whole(end_of_text),
        block_bytes=_whole(raw["block_bytes"]),
        made_from=str(raw["made_from"]),
        shards=tuple(
            ShardRecord(**{name: _file(shard[name]) for name in _names(raw["format"])})
            for shard in shards
        ),
        paired=raw["format"] == FORMAT_WITH_PAIRS,
    )
    if (index.tokens, index.documents) != (raw["tokens"], raw["documents"]):
        raise ValueError("the totals are not those of the shards")
    return index


def _names(form: str) -> tuple[str, ...]:
    always = ("tokens", "ends", "sums")
    return always if form == FORMAT else (*always, "learned")


def _file(raw: Mapping[str, Any]) -> ShardFile:
    return ShardFile(name=raw["name"], bytes=_whole(raw["bytes"]), sha256=raw["sha256"])


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value
