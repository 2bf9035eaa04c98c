"""A storage of checkpoints that counts what is read of its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drumline_trainer.checkpoint.manifest import FileRecord
from drumline_trainer.checkpoint.storage import CheckpointStorage, StepFiles


@dataclass(kw_only=True)
class CountedStorage:
    """Passes everything on; to be given to a restore."""

    storage: CheckpointStorage
    is_cached_by_nodes: bool
    read_bytes: int = 0
    """Of shard files."""
    overwrites: bool = False
    """Overwrite each chunk once the next one is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    def at(self, place: str) -> Any:
        """The place's files, counted."""
        return _CountedFiles(files=self.storage.at(place), storage=self)


@dataclass(kw_only=True)
class _CountedFiles:
    files: StepFiles
    storage: CountedStorage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def chunks(self, name: str, record: FileRecord) -> Iterator[memoryview]:
        for chunk in self.files.chunks(name, record):
            self.storage.read_bytes += len(chunk)
            if self.storage.overwrites:
                copy = bytearray(chunk)
                yield memoryview(copy)
                copy[:] = b"\xff" * len(copy)
            else:
                yield chunk
