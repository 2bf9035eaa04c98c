"""The files of one checkpoint in a folder: fsynced, linked where they have not changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.shard_file import (
    read_bounded,
    shard_record,
    stored_chunks,
    verify_file,
    write_shard_file,
)
from drumline_trainer.checkpoint.storage import Unchanged
from drumline_trainer.tensor_files.ranges import OpenTensorFile, open_tensor_file


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFiles:
    """A `StepFiles` of a folder."""

    path: Path
    committed_place: str

    @property
    def place(self) -> str:
        """The folder's name."""
        return self.path.name

    def write(
        self, name: str, tensors: Mapping[str, Tensor], *, check: Callable[[], None]
    ) -> FileRecord:
        """See `StepFiles`."""
        self.path.mkdir(exist_ok=True)
        return write_shard_file(self.path / name, tensors, check=check)

    def write_unchanged(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        *,
        before: Unchanged | None,
        check: Callable[[], None],
    ) -> FileRecord:
        """Link the last file if its content is the same and its bytes still verify, else write."""
        if before is not None and before.record == shard_record(tensors, check=check):
            known = self.path.parent / before.place / name
            if _linked(known, self.path / name, before.record, check=check):
                return before.record
        return self.write(name, tensors, check=check)

    def write_small(self, files: Mapping[str, bytes]) -> None:
        """See `StepFiles`."""
        for name, body in files.items():
            write_durably(self.path / name, body)
        sync_folder(self.path)

    def read_small(self, name: str, *, limit: int) -> bytes:
        """See `StepFiles`."""
        return read_bounded(self.path / name, limit=limit)

    def open(self, name: str) -> AbstractContextManager[OpenTensorFile]:
        """See `StepFiles`."""
        return open_tensor_file(self.path / name)

    def chunks(self, name: str, record: FileRecord) -> Iterator[memoryview]:
        """See `StepFiles`."""
        return stored_chunks(self.path / name, record)


def write_durably(path: Path, body: bytes, *, folder: int | None = None) -> None:
    """Write a small file and fsync it; with `folder` the path begins in this open folder.

    Args:
        path: path of the file.
        body: content of the file.
        folder: descriptor of a folder that `path` is relative to.
    """

    def opener(name: str, flags: int) -> int:
        # Another writer of the storage may have put a link or a pipe there.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)

    with open(path, "wb", opener=opener) as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _linked(known: Path, file: Path, record: FileRecord, *, check: Callable[[], None]) -> bool:
    """Link `known` as `file`; False where storage has no links or the bytes have rotted."""
    try:
        os.link(known, file, follow_symlinks=False)
    except OSError:
        return False
    try:
        # The link shares the old bytes: verify them, as damage there would be in both checkpoints.
        verify_file(file, record, check=check)
    except CorruptCheckpointError:
        file.unlink()
        return False
    return True
