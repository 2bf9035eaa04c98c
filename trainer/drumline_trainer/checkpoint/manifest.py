"""The manifest: which pieces of which tensors lie in which file, and how to tell they are intact.

Tensors that are cut alike share a tiling: a list of files, by their place among the sorted names,
with offsets and shape of each piece. So llama-405b over 1,024 ranks, 3.5 million pieces, is less
than a megabyte.

    "tilings": [{"shape": [8, 2], "files": [0, 1], "offsets": [[0, 0], [4, 0]],
                 "shapes": [[4, 2], [4, 2]]}],
    "tensors": {"model.a": {"dtype": "F32", "tiling": 0},
                "optimizer.exp_avg.a": {"dtype": "F32", "tiling": 0}}

`parse` trusts nothing: sizes are bounded before parsing, names are plain file names, the pieces of
every tensor tile its shape exactly once, and every file carries a size and the digest of a known
algorithm. `encode` and `verify` are called beside training: they do one small piece of work after
the other, so that no call into C keeps the interpreter's lock for long.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from drumline_contract import json_fields as read
from drumline_trainer.checkpoint.digests import HEX_DIGITS, Algorithm
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.sharding.boxes import Box, tiles

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_DIGEST_FILE: Final = "manifest.sha256"
MAX_MANIFEST_BYTES: Final = 256 << 20
FORMAT: Final = "drumline-checkpoint"
VERSION: Final = 2
_LISTED_BY_TENSOR: Final = 1
"""The version before tilings: every tensor lists its own pieces. Still read."""
DTYPE_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
"""Safetensors' names of the types we store."""
_MOST: Final = (1 << 62) - 1
_MAX_DIMENSIONS: Final = 8
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
        """Return the manifest's form, with the digest under the name of its algorithm."""
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
        """Bytes of all shard files together."""
        return sum(record.size_bytes for record in self.files.values())

    def encode(self) -> bytes:
        """Return the canonical JSON that is stored and digested."""
        # Sections are encoded one by one: the whole as one object would take several times the
        # memory, for a manifest of up to 256 MiB.
        tilings, tiling_of = self._tilings()
        place = {name: number for number, name in enumerate(sorted(self.files))}
        sections = {
            "attempt": _text(self.attempt),
            "files": _object_text({n: self.files[n].to_json() for n in sorted(self.files)}),
            "format": _text(FORMAT),
            "generation": _text(self.generation),
            "step": _text(self.step),
            "tensors": _object_text(
                {
                    name: {"dtype": self.tensors[name].dtype, "tiling": tiling_of[name]}
                    for name in sorted(self.tensors)
                }
            ),
            "tilings": f"[{','.join(_tiling_text(record, place) for record in tilings)}]",
            "trainer": _text(dict(self.trainer)),
            "version": _text(VERSION),
            "world_size": _text(self.world_size),
        }
        whole = ",".join(f'"{key}":{section}' for key, section in sections.items())
        return f"{{{whole}}}".encode()

    def verify(self) -> None:
        """Raise CorruptCheckpointError where `parse` would refuse what `encode` writes."""
        for name in self.files:
            _file_name(name)
        # Each distinct tiling once, not once per tensor.
        for record in self._tilings()[0]:
            if any(piece.file not in self.files for piece in record.pieces):
                raise CorruptCheckpointError("a tensor has a piece in a file that is not listed")
            _check_tiling(record.shape, record.pieces)

    def _tilings(self) -> tuple[list[TensorRecord], dict[str, int]]:
        """Return a record of each distinct tiling, by the names' order, and each tensor's index."""
        by_identity: dict[tuple[int, tuple[int, ...]], int] = {}
        by_value: dict[tuple[tuple[int, ...], tuple[Piece, ...]], int] = {}
        tilings: list[TensorRecord] = []
        tiling_of: dict[str, int] = {}
        for name in sorted(self.tensors):
            record = self.tensors[name]
            identity = (id(record.pieces), record.shape)
            if identity not in by_identity:  # else nothing of a thousand pieces is compared
                number = by_value.setdefault((record.shape, record.pieces), len(tilings))
                if number == len(tilings):
                    tilings.append(record)
                by_identity[identity] = number
            tiling_of[name] = by_identity[identity]
        return tilings, tiling_of

    @classmethod
    def parse(cls, body: bytes) -> Manifest:
        """Read `encode`'s bytes.

        Raises:
            CorruptCheckpointError: anything missing, of the wrong type or inconsistent.
        """
        try:
            return cls._parsed(read.json_object(body, MAX_MANIFEST_BYTES))
        except read.ContractError as error:
            raise CorruptCheckpointError(f"manifest: {error}") from None

    @classmethod
    def _parsed(cls, raw: dict[str, Any]) -> Manifest:
        version = raw.get("version")
        if raw.get("format") != FORMAT or version not in (_LISTED_BY_TENSOR, VERSION):
            raise CorruptCheckpointError(f"not a {FORMAT} manifest of version {VERSION} or before")
        files = {_file_name(n): _file_record(r) for n, r in read.nested(raw, "files").items()}
        records = read.nested(raw, "tensors")
        if version == VERSION:
            tilings = _parsed_tilings(raw, files=sorted(files))
            tensors = {name: _tensor(name, r, tilings=tilings) for name, r in records.items()}
        else:
            tensors = {name: _tensor_record(name, r, files=files) for name, r in records.items()}
        return cls(
            step=_count(raw, "step"),
            world_size=_count(raw, "world_size"),
            generation=_count(raw, "generation"),
            attempt=_count(raw, "attempt"),
            files=files,
            tensors=tensors,
            trainer=read.nested(raw, "trainer"),
        )


def digest_of(body: bytes) -> str:
    """Return the hex SHA-256 by which a manifest is known outside its folder."""
    return hashlib.sha256(body).hexdigest()


def digest_line(body: bytes) -> bytes:
    """Return the exact content of `manifest.sha256`, which `sha256sum -c` checks."""
    return f"{digest_of(body)}  {MANIFEST_FILE}\n".encode()


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _object_text(values: Mapping[str, object]) -> str:
    return f"{{{','.join(f'{_text(key)}:{_text(value)}' for key, value in values.items())}}}"


def _tiling_text(record: TensorRecord, place: Mapping[str, int]) -> str:
    return _text(
        {
            "shape": record.shape,
            "files": [place[piece.file] for piece in record.pieces],
            "offsets": [piece.box.offsets for piece in record.pieces],
            "shapes": [piece.box.shape for piece in record.pieces],
        }
    )


def _counts(raw: Mapping[str, Any], key: str) -> tuple[int, ...]:
    sides = read.array(raw, key, most=_MAX_DIMENSIONS)
    return tuple(_count({key: side}, key) for side in sides)


def _count(raw: Mapping[str, Any], key: str) -> int:
    return read.integer(raw, key, high=_MOST)


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    return read.array(raw, key, most=MAX_MANIFEST_BYTES)


def _file_name(name: object) -> str:
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise CorruptCheckpointError(f"{name!r} is not a plain file name")
    return name


def _file_record(raw: Any) -> FileRecord:
    record = read.nested({"file": raw}, "file")
    named = [algorithm for algorithm in Algorithm if algorithm in record]
    # A file without a digest could be anything.
    if len(named) != 1:
        raise CorruptCheckpointError("a file without one digest of a known kind is not trusted")
    algorithm, digest = named[0], record[named[0]]
    fits = isinstance(digest, str) and _DIGEST.fullmatch(digest)
    if not fits or len(digest) != HEX_DIGITS[algorithm]:
        raise CorruptCheckpointError(f"{algorithm}: not a digest")
    return FileRecord(size_bytes=_count(record, "bytes"), digest=digest, algorithm=algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiling:
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def _parsed_tilings(raw: Mapping[str, Any], *, files: Sequence[str]) -> list[_Tiling]:
    return [_tiling(item, files=files) for item in _list(raw, "tilings")]


def _tiling(raw: Any, *, files: Sequence[str]) -> _Tiling:
    record = read.nested({"tiling": raw}, "tiling")
    places, offsets, shapes = (_list(record, key) for key in ("files", "offsets", "shapes"))
    if not len(places) == len(offsets) == len(shapes):
        raise CorruptCheckpointError("tilings: files, offsets and shapes differ in length")
    pieces: list[Piece] = []
    for place, *sides in zip(places, offsets, shapes, strict=True):
        number = _count({"files": place}, "files")
        if number >= len(files):
            raise CorruptCheckpointError(f"tilings: there is no file {number}")
        box = _box(*(_counts({"tilings": side}, "tilings") for side in sides), name="tilings")
        pieces.append(Piece(file=files[number], box=box))
    shape = _counts(record, "shape")
    _check_tiling(shape, pieces)
    return _Tiling(shape=shape, pieces=tuple(pieces))


def _tensor(name: str, raw: Any, *, tilings: Sequence[_Tiling]) -> TensorRecord:
    record = read.nested({name: raw}, name)
    number = _count(record, "tiling")
    # Indices come from a file, so they are checked like any other input.
    if number >= len(tilings):
        raise CorruptCheckpointError(f"{name}: there is no tiling {number}")
    tiling = tilings[number]
    return TensorRecord(dtype=_dtype(name, record), shape=tiling.shape, pieces=tiling.pieces)


def _dtype(name: str, record: Mapping[str, Any]) -> str:
    dtype = record.get("dtype")
    if dtype not in tuple(DTYPE_BYTES):  # by equality: what JSON gives need not be hashable
        raise CorruptCheckpointError(f"{name}: unknown type {dtype!r}")
    return cast("str", dtype)


def _check_tiling(shape: Sequence[int], pieces: Sequence[Piece]) -> None:
    if not tiles(shape, [piece.box for piece in pieces]):
        raise CorruptCheckpointError(
            f"the shards of a tensor do not cover {list(shape)} exactly once"
        )


def _box(offsets: tuple[int, ...], shape: tuple[int, ...], *, name: str) -> Box:
    if len(offsets) != len(shape):
        raise CorruptCheckpointError(f"{name}: offsets and shape of a shard differ in length")
    return Box(offsets=offsets, shape=shape)


def _tensor_record(name: str, raw: Any, *, files: Mapping[str, FileRecord]) -> TensorRecord:
    """Decode a tensor of manifest version 1."""
    record = read.nested({name: raw}, name)
    shape = _counts(record, "shape")
    pieces = tuple(_piece(name, item, files=files) for item in _list(record, "shards"))
    _check_tiling(shape, pieces)
    return TensorRecord(dtype=_dtype(name, record), shape=shape, pieces=pieces)


def _piece(name: str, raw: Any, *, files: Mapping[str, FileRecord]) -> Piece:
    record = read.nested({name: raw}, name)
    file = _file_name(record.get("file"))
    if file not in files:
        raise CorruptCheckpointError(f"{name}: {file} is not among the manifest's files")
    box = _box(_counts(record, "offsets"), _counts(record, "shape"), name=name)
    return Piece(file=file, box=box)
