"""The files of one rank in a checkpoint: one for what changes, one for what does not.

Tensors that change are written at every checkpoint. Tensors that have not changed since the last
checkpoint, such as frozen weights, are in a file of their own, which is hard-linked instead of
written: the same bytes under one more name, so either checkpoint can be removed without the other.

Frozen tensors need no marking. A tensor whose first bytes (64 KiB) are those of the last checkpoint
goes to the unchanged file (`.still.safetensors`). That file is linked if the digest of its content
is the last one's, and if the bytes on storage still have that digest, as bit rot under one name is
bit rot under all names. Otherwise, and where storage has no hard links, as a bucket, it is written.

Example: an adapter A is trained on a frozen base B. Checkpoint 1 writes A and B to one file, as
there is nothing to compare with. Checkpoint 2 writes A, and B to the unchanged file. Checkpoint 3
writes A and links the unchanged file of checkpoint 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from drumline_trainer.checkpoint.digests import hasher
from drumline_trainer.checkpoint.errors import is_storage_fault
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.rank_report import (
    WriteFailed,
    WrittenFile,
    encode_report,
    groups_of_slices,
)
from drumline_trainer.checkpoint.storage import StepFiles, Unchanged
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.tensor_files.layout import as_bytes

_SAMPLE_BYTES = 64 << 10


def slices_to_write(slices: Sequence[TensorSlice]) -> list[TensorSlice]:
    """Return the part of these slices that this rank writes: each element is written by one rank.

    If this rank has several copies, such as an embedding at both ends of a pipeline, it writes one.
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

    rank: int
    world_size: int
    _samples: dict[str, str] = field(default_factory=dict[str, str])
    """Digests of the first bytes of the last checkpoint's tensors, by name."""
    _unchanged: Unchanged | None = None
    """The last checkpoint's unchanged file."""

    def write(
        self,
        files: StepFiles,
        slices: Sequence[TensorSlice],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> bytes:
        """Write durably.

        Args:
            files: files of the new checkpoint; the last one this writer wrote is committed.
            slices: `slices_to_write`.
            check: called between chunks; an exception that it raises ends the writing.

        Returns:
            A report for rank 0 (`rank_report`): the tensors of each file, or the error.
        """
        # 1. A digest of the first bytes tells cheaply which tensors have probably changed.
        samples = {local.name: _sample(local.tensor) for local in slices}
        same = {name for name, sample in samples.items() if self._samples.get(name) == sample}
        stem = f"rank-{self.rank:05d}-of-{self.world_size:05d}"
        changed = [local for local in slices if local.name not in same]
        unchanged = [local for local in slices if local.name in same]
        # 2. Changed tensors are always written.
        try:
            name = f"{stem}.safetensors"
            record = files.write(name, _tensors(changed), check=check)
            written = [_written(name, record, changed)]
            kept = None
            # 3. The others may reuse the last checkpoint's file, after a comparison of all bytes.
            if unchanged:
                name = f"{stem}.still.safetensors"
                record = files.write_unchanged(
                    name, _tensors(unchanged), before=self._unchanged, check=check
                )
                written.append(_written(name, record, unchanged))
                kept = Unchanged(place=files.committed_place, record=record)
        except OSError as error:
            failed = WriteFailed(f"rank {self.rank}: {error}", by_storage=is_storage_fault(error))
            return encode_report(failed)
        # Only after success: a failed save must not become the base of the next one.
        self._samples, self._unchanged = samples, kept
        return encode_report(tuple(written))


def _tensors(slices: Sequence[TensorSlice]) -> dict[str, Tensor]:
    return {local.name: local.tensor.detach() for local in slices}


def _sample(tensor: Tensor) -> str:
    digest = hasher()
    first = tensor.detach().reshape(-1)[: _SAMPLE_BYTES // tensor.element_size()]
    digest.update(as_bytes(first).cpu().numpy().data)
    return digest.hexdigest()


def _written(name: str, record: FileRecord, slices: Sequence[TensorSlice]) -> WrittenFile:
    return WrittenFile(name=name, record=record, groups=groups_of_slices(slices))
