"""The files of one rank in a checkpoint: one for what changes, one for what does not.

Tensors that change are written at every checkpoint. Tensors that have not changed since the last
checkpoint, such as frozen weights, are in a file of their own, which is hard-linked instead of
written: the same bytes under one more name, so either checkpoint can be removed without the other.

Frozen tensors need no marking. A tensor whose first bytes (64 KiB) are those of the last checkpoint
goes to the unchanged file (`.still.safetensors`). That file is linked if the digest of its content
is the last one's, and if the bytes on storage still have that digest, as bit rot under one name is
bit rot under all names. Otherwise, and where storage has no hard links, it is written.

Example: an adapter A is trained on a frozen base B. Checkpoint 1 writes A and B to one file, as
there is nothing to compare with. Checkpoint 2 writes A, and B to the unchanged file. Checkpoint 3
writes A and links the unchanged file of checkpoint 2.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from drumline_trainer.checkpoint.digests import hasher
from drumline_trainer.checkpoint.errors import CorruptCheckpointError, is_storage_fault
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.rank_report import (
    WriteFailed,
    WrittenFile,
    encode_report,
    groups_of_slices,
)
from drumline_trainer.checkpoint.shard_file import (
    as_bytes,
    shard_record,
    verify_file,
    write_shard_file,
)
from drumline_trainer.sharding.slices import TensorSlice

_SAMPLE_BYTES = 64 << 10


def slices_to_write(slices: Sequence[TensorSlice]) -> list[TensorSlice]:
    """The part of these slices that this rank writes: all ranks together write each element once.

    Of several copies on this rank, as of an embedding at both ends of a pipeline, one is written.
    """
    copies_here = Counter(local.name for local in slices)
    distinct: dict[str, TensorSlice] = {}
    for local in slices:  # numbered as if every rank that holds the slice had one copy of it
        count = copies_here[local.name]
        numbered = replace(local, copies=local.copies // count, copy=local.copy // count)
        distinct.setdefault(local.name, numbered)
    parts = (local.own_part() for local in distinct.values())
    return [part for part in parts if part.box.elements]


@dataclass(slots=True, kw_only=True)
class RankWriter:
    """Writes the files of one rank in one membership; remembers the last checkpoint."""

    folder: CheckpointFolder
    rank: int
    world_size: int
    _samples: dict[str, str] = field(default_factory=dict[str, str])
    """Digests of the first bytes of the last checkpoint's tensors, by name."""
    _unchanged: tuple[Path, FileRecord] | None = None
    """The last checkpoint's unchanged file."""

    def write(
        self, step: int, slices: Sequence[TensorSlice], *, check: Callable[[], None] = lambda: None
    ) -> bytes:
        """Write and fsync.

        Args:
            step: of the checkpoint; the last one this writer wrote is committed.
            slices: `slices_to_write`.
            check: called between chunks; an exception that it raises ends the writing.

        Returns:
            A report for rank 0 (`rank_report`): the tensors of each file, or the error.
        """
        samples = {local.name: _sample(local.tensor) for local in slices}
        same = {name for name, sample in samples.items() if self._samples.get(name) == sample}
        target = self.folder.unfinished_folder(step)
        stem = f"rank-{self.rank:05d}-of-{self.world_size:05d}"
        changed = [local for local in slices if local.name not in same]
        unchanged = [local for local in slices if local.name in same]
        try:
            target.mkdir(exist_ok=True)
            file = target / f"{stem}.safetensors"
            record = write_shard_file(file, _tensors(changed), check=check)
            files = [_written(file, record, changed)]
            kept = None
            if unchanged:
                file = target / f"{stem}.still.safetensors"
                record = self._link_or_write(file, _tensors(unchanged), check=check)
                files.append(_written(file, record, unchanged))
                kept = self.folder.step_folder(step) / file.name, record
        except OSError as error:
            failed = WriteFailed(f"rank {self.rank}: {error}", by_storage=is_storage_fault(error))
            return encode_report(failed)
        self._samples, self._unchanged = samples, kept
        return encode_report(tuple(files))

    def _link_or_write(
        self, file: Path, tensors: Mapping[str, Tensor], *, check: Callable[[], None]
    ) -> FileRecord:
        if self._unchanged is not None:
            known, record = self._unchanged
            if record == shard_record(tensors, check=check) and _linked(
                known, file, record, check=check
            ):
                return record
        return write_shard_file(file, tensors, check=check)


def _linked(known: Path, file: Path, record: FileRecord, *, check: Callable[[], None]) -> bool:
    """Link `known` as `file`; False where storage has no links or the bytes have rotted."""
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


def _tensors(slices: Sequence[TensorSlice]) -> dict[str, Tensor]:
    return {local.name: local.tensor.detach() for local in slices}


def _sample(tensor: Tensor) -> str:
    digest = hasher()
    first = tensor.detach().reshape(-1)[: _SAMPLE_BYTES // tensor.element_size()]
    digest.update(as_bytes(first).cpu().numpy().data)
    return digest.hexdigest()


def _written(file: Path, record: FileRecord, slices: Sequence[TensorSlice]) -> WrittenFile:
    return WrittenFile(name=file.name, record=record, groups=groups_of_slices(slices))
