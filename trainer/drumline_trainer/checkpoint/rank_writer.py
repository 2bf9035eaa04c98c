"""A rank's own part of a checkpoint: at most two files.

What changes from one checkpoint to the next is written anew each time. What has not changed since
the last one lies in a file of its own, which is then linked and not written: one more name of the
same bytes, so either checkpoint may be removed without the other. Nobody has to say what is frozen.
A tensor whose first bytes are those of last time goes into the file of still ones; that file is
linked if its digest is the one it had, and if the bytes on storage still have it, as one name that
rots takes all others along. Where storage knows no links it is written.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from drumline_trainer.checkpoint.digests import hasher
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.shard_file import (
    as_bytes,
    dtype_name,
    shard_record,
    verify_file,
    write_shard_file,
)
from drumline_trainer.sharding.slices import Slice

_SAMPLE_BYTES = 64 << 10


def slices_to_write(slices: Sequence[Slice]) -> list[Slice]:
    """What this rank writes of its slices: together, ranks write every element once.

    Of several copies on this rank, as of an embedding at both ends of a pipeline, one is written.
    """
    here = Counter(one.name for one in slices)
    writing: dict[str, Slice] = {}
    for one in slices:  # as if every holder had one copy
        copies, copy = one.copies // here[one.name], one.copy // here[one.name]
        writing.setdefault(one.name, replace(one, copies=copies, copy=copy))
    return [part for part in (each.own_part() for each in writing.values()) if part.box.elements]


@dataclass(slots=True, kw_only=True)
class RankWriter:
    """Of one rank in one membership; remembers what it wrote last."""

    folder: CheckpointFolder
    rank: int
    world_size: int
    _samples: dict[str, str] = field(default_factory=dict[str, str])
    """Of the last checkpoint's tensors."""
    _still: tuple[Path, FileRecord] | None = None
    """The last checkpoint's file of what had not changed."""

    def write(
        self, step: int, parts: Sequence[Slice], *, check: Callable[[], None] = lambda: None
    ) -> bytes:
        """Write what `slices_to_write` gave, fsynced.

        Args:
            step: of the checkpoint; the last one this writer wrote is committed.
            parts: what to write.
            check: called now and then; what it raises ends the writing.

        Returns:
            A report for rank 0: what is in which file, or why there is none.
        """
        samples = {part.name: _sample(part.tensor) for part in parts}
        still = {n for n, sample in samples.items() if self._samples.get(n) == sample}
        target = self.folder.unfinished_folder(step)
        stem = f"rank-{self.rank:05d}-of-{self.world_size:05d}"
        moving = [part for part in parts if part.name not in still]
        resting = [part for part in parts if part.name in still]
        try:
            target.mkdir(exist_ok=True)
            file = target / f"{stem}.safetensors"
            files = [_report(file, write_shard_file(file, _tensors(moving), check=check), moving)]
            kept = None
            if resting:
                file = target / f"{stem}.still.safetensors"
                record = self._link_or_write(file, _tensors(resting), check=check)
                files.append(_report(file, record, resting))
                kept = self.folder.step_folder(step) / file.name, record
        except OSError as error:
            return json.dumps({"error": f"rank {self.rank}: {error}"}).encode()
        self._samples, self._still = samples, kept
        return json.dumps({"files": files}).encode()

    def _link_or_write(
        self, file: Path, tensors: Mapping[str, Tensor], *, check: Callable[[], None]
    ) -> FileRecord:
        if self._still is not None:
            known, record = self._still
            if record == shard_record(tensors, check=check) and _linked(
                known, file, record, check=check
            ):
                return record
        return write_shard_file(file, tensors, check=check)


def _linked(known: Path, file: Path, record: FileRecord, *, check: Callable[[], None]) -> bool:
    """Whether the bytes of `known` have another name now, and are what they were."""
    try:
        os.link(known, file, follow_symlinks=False)
    except OSError:
        return False
    try:
        verify_file(file, record, check=check)
    except CorruptCheckpointError:
        file.unlink()
        return False
    return True


def _tensors(parts: Sequence[Slice]) -> dict[str, Tensor]:
    return {part.name: part.tensor.detach() for part in parts}


def _sample(tensor: Tensor) -> str:
    digest = hasher()
    first = tensor.detach().reshape(-1)[: _SAMPLE_BYTES // tensor.element_size()]
    digest.update(as_bytes(first).cpu().numpy().data)
    return digest.hexdigest()


def _report(file: Path, record: FileRecord, parts: Sequence[Slice]) -> dict[str, Any]:
    return {
        "name": file.name,
        "bytes": record.size_bytes,
        "digest": record.digest,
        "parts": {
            part.name: (dtype_name(part.tensor), part.shape, part.box.offsets, part.box.shape)
            for part in parts
        },
    }
