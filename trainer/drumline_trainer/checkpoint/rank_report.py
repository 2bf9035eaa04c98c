"""Report of a rank to rank 0 once it has written its files.

Slices of one type, shape and box are one group with a list of names. A rank of FSDP holds the same
rows of all layers' matrices of one kind, and of both their moments. So thousands of tensors are a
dozen groups. The report is compressed, because every rank gets all of them.

Example, of a rank that holds rows 4-7 of two matrices and of their moments:

    F32 (8, 16)  box (4, 0)+(4, 16)  model.a, model.b, optimizer.exp_avg.a, optimizer.exp_avg.b, ...
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.tensor_files.layout import dtype_name

_COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGroup:
    """Tensors of which a file holds the same box."""

    dtype: str
    shape: tuple[int, ...]
    """Shape of each whole tensor."""
    box: Box
    names: str
    """Sorted, a line each; as one text it is compared at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A shard file and what it holds."""

    name: str
    record: FileRecord
    groups: tuple[SliceGroup, ...]


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """This rank could not write."""

    reason: str
    by_storage: bool
    """The storage is full or does not answer."""


RankReport = tuple[WrittenFile, ...] | WriteFailed


def groups_of_slices(slices: Sequence[TensorSlice]) -> tuple[SliceGroup, ...]:
    """Return the slices grouped by type, shape and box."""
    names: dict[tuple[str, tuple[int, ...], Box], list[str]] = {}
    for local in slices:
        key = (dtype_name(local.tensor), tuple(local.shape), local.box)
        names.setdefault(key, []).append(local.name)
    return tuple(
        SliceGroup(dtype=dtype, shape=shape, box=box, names="\n".join(sorted(same)))
        for (dtype, shape, box), same in names.items()
    )


def encode_report(report: RankReport) -> bytes:
    """Encode a report for rank 0."""
    match report:
        case WriteFailed(reason, by_storage):
            raw: object = {"error": reason, "storage": by_storage}
        case files:
            raw = [
                (
                    file.name,
                    file.record.size_bytes,
                    file.record.digest,
                    [(g.dtype, g.shape, g.box.offsets, g.box.shape, g.names) for g in file.groups],
                )
                for file in files
            ]
    return zlib.compress(json.dumps(raw).encode(), _COMPRESSION_LEVEL)


def decode_report(encoded: bytes) -> RankReport:
    """Decode a report of `encode_report`."""
    raw: Any = json.loads(zlib.decompress(encoded))
    match raw:
        case {"error": str(reason), "storage": bool(by_storage)}:
            return WriteFailed(reason, by_storage=by_storage)
        case _:
            pass
    return tuple(
        WrittenFile(
            name=name,
            record=FileRecord(size_bytes=size, digest=digest),
            groups=tuple(
                SliceGroup(
                    dtype=dtype,
                    shape=tuple(shape),
                    box=Box(offsets=tuple(offsets), shape=tuple(box_shape)),
                    names=names,
                )
                for dtype, shape, offsets, box_shape, names in groups
            ),
        )
        for name, size, digest, groups in raw
    )
