"""The manifest: which pieces of which tensors lie in which file, and how to tell they are intact.

`parse` trusts nothing: sizes are bounded before parsing, names are plain file names, the pieces of
every tensor tile its shape exactly once, and every file carries a size and the digest of a known
algorithm.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from drumline_trainer.checkpoint.digests import HEX_DIGITS, Algorithm
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.sharding.boxes import Box, tiles

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_DIGEST_FILE: Final = "manifest.sha256"
MAX_MANIFEST_BYTES: Final = 256 << 20
"""About 400 bytes per piece: 4,096 ranks of a model of 150 tensors with two moments each."""
FORMAT: Final = "drumline-checkpoint"
VERSION: Final = 1
DTYPE_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
"""Safetensors' names of the types we store."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A shard file as its writer left it."""

    size_bytes: int
    digest: str
    """In hexadecimal."""
    algorithm: Algorithm = Algorithm.XXH3_128

    def to_json(self) -> dict[str, Any]:
        """As the manifest has it: the digest under the name of its algorithm."""
        return {"bytes": self.size_bytes, str(self.algorithm): self.digest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a tensor, stored under the tensor's own name in one file."""

    file: str
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """A global tensor and the pieces that tile it."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything about one checkpoint but the numbers themselves."""

    step: int
    world_size: int
    generation: int
    attempt: int
    files: Mapping[str, FileRecord]
    tensors: Mapping[str, TensorRecord]
    trainer: Mapping[str, Any]
    """The trainer's own state: plain JSON values."""

    @property
    def size_bytes(self) -> int:
        """Of all shard files together."""
        return sum(record.size_bytes for record in self.files.values())

    def encode(self) -> bytes:
        """Canonical JSON: what is stored and digested."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "step": self.step,
                "world_size": self.world_size,
                "generation": self.generation,
                "attempt": self.attempt,
                "files": {name: record.to_json() for name, record in self.files.items()},
                "tensors": {
                    name: {
                        "dtype": record.dtype,
                        "shape": record.shape,
                        "shards": [_piece_json(piece) for piece in record.pieces],
                    }
                    for name, record in self.tensors.items()
                },
                "trainer": dict(self.trainer),
            },
            sort_keys=True,
            separators=(",", ":"),
        ).encode()

    @classmethod
    def parse(cls, body: bytes) -> Manifest:
        """Read `encode`'s bytes.

        Raises:
            CorruptCheckpointError: anything missing, of the wrong type or inconsistent.
        """
        raw = _decode(body)
        if raw.get("format") != FORMAT or raw.get("version") != VERSION:
            raise CorruptCheckpointError(f"not a {FORMAT} manifest of version {VERSION}")
        files = {_file_name(n): _file_record(r) for n, r in _object(raw, "files").items()}
        tensors = {
            name: _tensor_record(name, record, files=files)
            for name, record in _object(raw, "tensors").items()
        }
        return cls(
            step=_count(raw, "step"),
            world_size=_count(raw, "world_size"),
            generation=_count(raw, "generation"),
            attempt=_count(raw, "attempt"),
            files=files,
            tensors=tensors,
            trainer=_object(raw, "trainer"),
        )


def digest_of(body: bytes) -> str:
    """SHA-256, hex: the name by which a manifest is known outside its folder."""
    return hashlib.sha256(body).hexdigest()


def digest_line(body: bytes) -> bytes:
    """The exact content of `manifest.sha256`; `sha256sum -c manifest.sha256` checks it too."""
    return f"{digest_of(body)}  {MANIFEST_FILE}\n".encode()


def _piece_json(piece: Piece) -> dict[str, Any]:
    return {"file": piece.file, "offsets": piece.box.offsets, "shape": piece.box.shape}


def _decode(body: bytes) -> dict[str, Any]:
    try:
        raw: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"manifest is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CorruptCheckpointError("manifest is not a JSON object")
    return cast("dict[str, Any]", raw)


def _object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    if not isinstance(value, dict):
        raise CorruptCheckpointError(f"{key}: must be an object")
    return cast("dict[str, Any]", value)


def _count(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise CorruptCheckpointError(f"{key}: must be a whole number")
    return value


def _counts(raw: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = raw.get(key)
    if not isinstance(value, list) or len(cast("list[Any]", value)) > 8:
        raise CorruptCheckpointError(f"{key}: must be a list of at most 8 whole numbers")
    return tuple(_count({key: item}, key) for item in cast("list[Any]", value))


def _file_name(name: object) -> str:
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise CorruptCheckpointError(f"{name!r} is not a plain file name")
    return name


def _file_record(raw: Any) -> FileRecord:
    record = _object({"file": raw}, "file")
    named = [algorithm for algorithm in Algorithm if algorithm in record]
    if len(named) != 1:
        raise CorruptCheckpointError("a file without one digest of a known kind is not trusted")
    algorithm, digest = named[0], record[named[0]]
    fits = isinstance(digest, str) and _DIGEST.fullmatch(digest)
    if not fits or len(digest) != HEX_DIGITS[algorithm]:
        raise CorruptCheckpointError(f"{algorithm}: not a digest")
    return FileRecord(size_bytes=_count(record, "bytes"), digest=digest, algorithm=algorithm)


def _tensor_record(name: str, raw: Any, *, files: Mapping[str, FileRecord]) -> TensorRecord:
    record = _object({name: raw}, name)
    dtype, shards = record.get("dtype"), record.get("shards")
    if dtype not in tuple(DTYPE_BYTES):  # by equality: what JSON gives need not be hashable
        raise CorruptCheckpointError(f"{name}: unknown type {dtype!r}")
    if not isinstance(shards, list):
        raise CorruptCheckpointError(f"{name}: shards must be a list")
    shape = _counts(record, "shape")
    pieces = tuple(_piece(name, item, files=files) for item in cast("list[Any]", shards))
    if not tiles(shape, [piece.box for piece in pieces]):
        raise CorruptCheckpointError(f"{name}: its shards do not cover {list(shape)} exactly once")
    return TensorRecord(dtype=cast("str", dtype), shape=shape, pieces=pieces)


def _piece(name: str, raw: Any, *, files: Mapping[str, FileRecord]) -> Piece:
    record = _object({name: raw}, name)
    file = _file_name(record.get("file"))
    if file not in files:
        raise CorruptCheckpointError(f"{name}: {file} is not among the manifest's files")
    offsets, shape = _counts(record, "offsets"), _counts(record, "shape")
    if len(offsets) != len(shape):
        raise CorruptCheckpointError(f"{name}: offsets and shape of a shard differ in length")
    return Piece(file=file, box=Box(offsets=offsets, shape=shape))
