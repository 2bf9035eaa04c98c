"""Interface to the storage of checkpoints; `folder` and `bucket` implement it.

Both keep these rules:

* A step is there completely or not at all. Its files are written under a place of their own, and
  one atomic act (`commit`) publishes the step.
* Commit, claim and retention exclude each other. A replaced membership changes nothing any more. *
Files without a commit are removed by the next `claim`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from drumline_trainer.checkpoint.errors import StaleMembershipError
from drumline_trainer.checkpoint.lease import LeasePlace
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.ownership import Membership, Owner
from drumline_trainer.tensor_files.ranges import OpenTensorFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The last checkpoint's file with tensors that had not changed."""

    place: str
    """Place of that checkpoint, once it is committed."""
    record: FileRecord


class StepFiles(Protocol):
    """The files of one checkpoint, before its commit or after."""

    @property
    def place(self) -> str:
        """Its name within the storage."""
        ...

    @property
    def committed_place(self) -> str:
        """Its name once it is committed."""
        ...

    def write(
        self, name: str, tensors: Mapping[str, Tensor], *, check: Callable[[], None]
    ) -> FileRecord:
        """Write a shard file durably; `check` is called between chunks. Raises OSError.

        Args:
            name: name of the file in its step.
            tensors: tensors by name.
            check: called between chunks. It may raise to cancel.
        """
        ...

    def write_unchanged(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        *,
        before: Unchanged | None,
        check: Callable[[], None],
    ) -> FileRecord:
        """Do as `write` with tensors that may be unchanged; a storage may link the older file.

        Args:
            name: name of the file in its step.
            tensors: tensors by name.
            before: the file of an earlier step with the same tensors.
            check: called between chunks. It may raise to cancel.

        Raises:
            OSError: the file cannot be written.
        """
        ...

    def write_small(self, files: Mapping[str, bytes]) -> None:
        """Write these durably, after all shard files. Raises OSError."""
        ...

    def read_small(self, name: str, *, limit: int) -> bytes:
        """Read a small file.

        Raises:
            CorruptCheckpointError: it is missing, not readable or too large.
        """
        ...

    def open(self, name: str) -> AbstractContextManager[OpenTensorFile]:
        """Open a verified shard file, to read its tensors one by one."""
        ...

    def chunks(self, name: str, record: FileRecord) -> Iterator[memoryview]:
        """Yield the bytes of a shard file in order, each once. A view is valid until the next one.

        Raises:
            CorruptCheckpointError: it is missing, cannot be read or is of another size.
            CheckpointError: the storage is lost.
        """
        ...


class CheckpointStorage(Protocol):
    """Storage of the checkpoints of one run, as one membership sees it."""

    @property
    def where(self) -> str:
        """For messages."""
        ...

    @property
    def owner(self) -> str:
        """Uid of the job, or the name of a run without an operator."""
        ...

    @property
    def membership(self) -> Membership:
        """Membership of the job that writes here."""
        ...

    @property
    def is_cached_by_nodes(self) -> bool:
        """True if data that one process of a node has read is cached for its other processes."""
        ...

    @property
    def lease(self) -> LeasePlace:
        """The place of the owner's lease."""
        ...

    def known_owner(self) -> Owner | None:
        """Return the owner that the storage names. Raises CheckpointError, OSError."""
        ...

    def claim(self, *, seen: Owner | None = None) -> None:
        """Become the owner and remove what earlier owners left unfinished; rank 0 alone.

        Args:
            seen: the owner that this one replaces; None replaces any.

        Raises:
            StaleMembershipError: a newer membership of this job has claimed it.
            FolderTakenError: another job than `seen` has.
            CheckpointError, OSError: it cannot be used.
        """
        ...

    def steps(self) -> list[int]:
        """Return the committed steps, newest first, verified or not. Only rank 0 lists them."""
        ...

    def committed(self, step: int) -> StepFiles:
        """Return the files of a committed step.

        Raises:
            CorruptCheckpointError: they are missing.
        """
        ...

    def at(self, place: str) -> StepFiles:
        """Return the files of a place that rank 0 has named."""
        ...

    def begin(self, step: int) -> StepFiles:
        """Return where all ranks write a new checkpoint.

        Each rank calls it once per save, in order.
        """
        ...

    def commit(self, step: int, *, files: StepFiles) -> None:
        """Make the step known whose files these are; rank 0 alone.

        Raises:
            StaleMembershipError: another membership owns the storage; nothing was changed.
            CheckpointError, OSError: nothing was committed.
        """
        ...

    def ownership_error(self) -> StaleMembershipError | None:
        """Return why this membership may no longer commit; None if it may or this is unknown."""
        ...

    def discard(self, files: StepFiles) -> None:
        """Remove the files of a save that failed; what cannot be removed stays until a `claim`."""
        ...

    def prune(self, *, keep: int, verified: Sequence[int], spared: int | None = None) -> None:
        """Remove steps that are `retention.outdated`, of a storage that we still own.

        Args:
            keep: number of steps to keep.
            verified: steps that were read back.
            spared: a step that must stay.
        """
        ...
