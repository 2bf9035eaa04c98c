"""Filling of all ranks' slices from files that one rank each reads for all.

Collective, in three exchanges:

1. All ranks announce the bytes that they need of each file, and agree on its reader (`readers`).
2. Every rank sends each reader its needs: boxes, and their tensors. Copies of a model send equal
   requests, which are merged.
3. Readers read their files, compute digests, and send every block of rows to the ranks that need
   some of it (`sharding.exchange`). Those fill their slices at once.

No value is trusted before the last byte. If a digest differs, or a value is not finite, all ranks
reject the data. Their slices are then undefined.

Example: four copies of a tensor were written in four files of one row each. Each rank reads one
file, sends the row to the other three, and keeps it.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_trainer.checkpoint.digests import hasher
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.intervals import Interval
from drumline_trainer.checkpoint.manifest import Manifest
from drumline_trainer.checkpoint.passing_tensors import Block, PassingTensors, WantedTensor
from drumline_trainer.checkpoint.shard_file import longest_header
from drumline_trainer.checkpoint.storage import StepFiles
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.byte_collectives import Rejected, Vote, gather_bytes
from drumline_trainer.sharding.exchange import exchange
from drumline_trainer.sharding.exchange_rounds import SharedRows, Tag
from drumline_trainer.tensor_files.layout import DTYPES

_COMPRESSION_LEVEL = 1
_Plan = Mapping[str, Sequence[Interval]]


def fill_slices(
    files: StepFiles,
    manifest: Manifest,
    plan: _Plan,
    *,
    cache: str | None,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> Vote:
    """Verify every file of a checkpoint, and fill the targets of this rank's plan. Collective.

    Args:
        files: files of the checkpoint.
        manifest: manifest of the checkpoint.
        plan: `reading_plan`.
        cache: `page_cache` of this rank.
        device: device of the tensors that travel.
        progress: called between chunks of what is read and parts of what is filled.

    Returns:
        Rejected on all ranks alike where a file is missing or damaged; the targets are undefined.
    """
    # 1. Agree on readers. Sorted names give the same numbers on all ranks.
    names, tensors = sorted(manifest.files), sorted(manifest.tensors)
    readers = _agreed_readers(manifest, names, plan, cache=cache, device=device)
    targets = _Targets.of(plan, names, tensors, progress=progress)
    requests: dict[int, dict[bytes, list[int]]] = {
        file: {} for file, of in enumerate(readers) if dist.get_rank() in of.values()
    }

    def receive_request(tag: Tag, _row: int, data: Tensor) -> None:
        file, rank, _ = tag
        requests[file].setdefault(data.cpu().numpy().tobytes(), []).append(rank)

    # 2. Send the needs of this rank to the readers.
    asked = exchange(targets.requests(readers), receive=receive_request, refusals=(), device=device)
    if isinstance(asked, Rejected):
        return asked
    # 3. Read, send and fill, in rounds of bounded size.
    reader = _FileReader(
        files=files,
        manifest=manifest,
        names=names,
        tensors=tensors,
        longest_header=longest_header(tensors),
        progress=progress,
    )
    return exchange(
        (rows for file in sorted(requests) for rows in reader.read(file, requests[file])),
        receive=targets.fill,
        refusals=(CorruptCheckpointError,),
        device=device,
        progress=progress,
    )


def _agreed_readers(
    manifest: Manifest,
    names: Sequence[str],
    plan: _Plan,
    *,
    cache: str | None,
    device: torch.device,
) -> Readers:
    needed = [
        sum(i.common.elements * i.target.element_size() for i in plan.get(name, ()))
        for name in names
    ]
    counts = {file: count for file, count in enumerate(needed) if count}
    # Compressed, because every rank receives the needs of all ranks.
    mine = zlib.compress(json.dumps([cache, [*counts.items()]]).encode(), _COMPRESSION_LEVEL)
    rows = gather_bytes(mine, device=device)
    answers: list[Any] = [json.loads(zlib.decompress(row)) for row in rows]
    return readers_of(
        [manifest.files[name].size_bytes for name in names],
        [dict(counts) for _, counts in answers],
        caches=None if cache is None else [str(other) for other, _ in answers],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoxTargets:
    """Tensors of which this rank needs the same box out of the same file."""

    common: Box
    intervals: dict[int, list[Interval]] = field(default_factory=dict[int, list[Interval]])
    """Intervals by the tensor's index among all names. Several if this rank holds it twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Targets:
    """This rank's needs of each file, and the slices to fill."""

    groups: Mapping[int, Sequence[_BoxTargets]]
    """Groups by file."""
    progress: Callable[[], None]

    @classmethod
    def of(
        cls,
        plan: _Plan,
        files: Sequence[str],
        tensors: Sequence[str],
        *,
        progress: Callable[[], None],
    ) -> _Targets:
        number_of = {name: number for number, name in enumerate(tensors)}
        groups: dict[int, list[_BoxTargets]] = {}
        for file, name in enumerate(files):
            by_box: dict[Box, _BoxTargets] = {}
            for interval in plan.get(name, ()):
                group = by_box.setdefault(interval.common, _BoxTargets(common=interval.common))
                group.intervals.setdefault(number_of[interval.name], []).append(interval)
            groups[file] = [*by_box.values()]
        return cls(groups=groups, progress=progress)

    def requests(self, readers: Readers) -> Iterator[SharedRows]:
        """Yield a request to the reader of each file; empty ones are not made."""
        own_rank = dist.get_rank()
        for file, groups in self.groups.items():
            if not groups:
                continue
            raw = [(g.common.offsets, g.common.shape, [*g.intervals]) for g in groups]
            body = zlib.compress(json.dumps(raw).encode(), _COMPRESSION_LEVEL)
            yield SharedRows.of(
                torch.frombuffer(bytearray(body), dtype=torch.uint8).unsqueeze(0),  # in one row
                tag=(file, own_rank, 0),
                ranks=(readers[file][own_rank],),
            )

    def fill(self, tag: Tag, row: int, data: Tensor) -> None:
        """Take rows of a group's box of one tensor."""
        self.progress()
        file, number, tensor = tag
        group = self.groups[file][number]
        for interval in group.intervals[tensor]:
            values, part = data.view(interval.target.dtype), group.common
            # A block is a run of rows of the requested box.
            if part.shape:
                rows = values.numel() // math.prod(part.shape[1:])
                part = part.rows(row, row + rows)
            target = interval.target[part.slices_within(interval.target_box)]
            target.copy_(values.view(part.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoxRequest:
    """A part of a tensor, for all ranks that need just this."""

    group: int
    tensor: int
    common: Box
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileReader:
    """Reads files for all."""

    files: StepFiles
    manifest: Manifest
    names: Sequence[str]
    """Names of the files, by number."""
    tensors: Sequence[str]
    """Their names, by number."""
    longest_header: int
    """Bytes that the header of any of the files has at most."""
    progress: Callable[[], None]

    def read(self, file: int, requests: Mapping[bytes, Sequence[int]]) -> Iterator[SharedRows]:
        """Yield the requested rows of one file while reading it.

        Raises:
            CorruptCheckpointError: the file is missing or damaged, or holds values that are not
                finite. Raised at its end, because only then it is known.
        """
        name = self.names[file]
        requested = self._requested(requests)
        record, unusable = self.manifest.files[name], ""
        digest = hasher(record.algorithm)
        passing = PassingTensors(
            self._wanted(name, requested),
            file=name,
            longest_header=self.longest_header,
        )
        for chunk in self.files.chunks(name, record):
            self.progress()
            digest.update(chunk)
            for block in passing.feed(chunk):
                # Remember and continue: the digest tells first whether the file is damaged.
                unusable = unusable or ("" if _is_finite(block.values) else block.name)
                for request in requested[block.name]:
                    yield from _cut(block, request, file=file)
        if digest.hexdigest() != record.digest:
            raise CorruptCheckpointError(f"{name}: digest differs from the manifest's")
        passing.finish()
        if unusable:
            raise CorruptCheckpointError(
                f"{name}: {unusable} holds values that are infinite or no numbers"
            )

    def _requested(self, requests: Mapping[bytes, Sequence[int]]) -> dict[str, list[_BoxRequest]]:
        """Decode requests, by tensor."""
        requested: dict[str, list[_BoxRequest]] = {}
        for body, ranks in requests.items():
            groups: list[tuple[list[int], list[int], list[int]]] = json.loads(zlib.decompress(body))
            for number, (offsets, shape, tensors) in enumerate(groups):
                common = Box(offsets=tuple(offsets), shape=tuple(shape))
                for tensor in tensors:
                    request = _BoxRequest(
                        group=number, tensor=tensor, common=common, ranks=tuple(ranks)
                    )
                    requested.setdefault(self.tensors[tensor], []).append(request)
        return requested

    def _wanted(self, file: str, tensors: Mapping[str, object]) -> dict[str, WantedTensor]:
        boxes: dict[int, Box] = {}  # thousands of tensors share their pieces
        wanted: dict[str, WantedTensor] = {}
        for name in tensors:
            record = self.manifest.tensors[name]
            key = id(record.pieces)
            if key not in boxes:
                boxes[key] = next(piece.box for piece in record.pieces if piece.file == file)
            wanted[name] = WantedTensor(dtype=DTYPES[record.dtype], box=boxes[key])
        return wanted


def _cut(block: Block, request: _BoxRequest, *, file: int) -> Iterator[SharedRows]:
    part = request.common.intersection(block.box)
    if part is not None:
        row = part.offsets[0] - request.common.offsets[0] if part.offsets else 0
        values = block.values[part.slices_within(block.box)]
        if request.ranks != (dist.get_rank(),):
            values = values.clone()  # they wait to be sent, longer than a block is valid
        tag = (file, request.group, request.tensor)
        yield SharedRows.of(values, tag=tag, ranks=request.ranks, first=row)


def _is_finite(values: Tensor) -> bool:
    """Return whether all values are finite.

    One pass, ten times as fast as `isfinite`: NaN becomes the minimum and the maximum.
    """
    if not values.is_floating_point():
        return True
    # aminmax propagates NaN to both results.
    low, high = values.aminmax()
    return math.isfinite(low) and math.isfinite(high)


Readers = Sequence[Mapping[int, int]]
"""The reader for each rank that needs a file, and of a file that no rank needs; by file."""
_READER_SHARE: Final = 0.5
"""Share of the largest need of a file. A rank that needs less does not read it for others."""


def readers_of(
    sizes: Sequence[int],
    needed: Sequence[Mapping[int, int]],
    *,
    caches: Sequence[str] | None = None,
) -> Readers:
    """Choose; the same on all ranks that ask with the same values.

    Args:
        sizes: bytes of each file.
        needed: for each rank the bytes that it needs of each file.
        caches: for each rank the name of its cache. None: no rank has a cache.
    """
    # 1. Turn the needs around: which ranks want which file.
    by_file: list[dict[int, int]] = [{} for _ in sizes]
    for rank, files in enumerate(needed):
        for file, count in files.items():
            by_file[file][rank] = count
    loads = [0] * len(needed)
    readers: list[dict[int, int]] = [{} for _ in sizes]
    # 2. Largest files first balances the loads best (longest processing time first).
    for file in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        wanting = by_file[file]
        most = max(wanting.values(), default=0)
        able = [rank for rank in wanting if wanting[rank] >= _READER_SHARE * most] or range(
            len(needed)
        )
        reader = min(able, key=lambda rank: (loads[rank], -wanting.get(rank, 0), rank))
        # A file that no rank needs has a reader, too: it must be verified.
        assigned = dict.fromkeys(wanting, reader) or {reader: reader}
        # 3. Ranks beside the reader get the file from the page cache at no cost to the storage.
        if caches is not None:
            assigned |= {rank: rank for rank in wanting if caches[rank] == caches[reader]}
        for rank in {*assigned.values()}:
            loads[rank] += sizes[file]
        readers[file] = assigned
    return readers
