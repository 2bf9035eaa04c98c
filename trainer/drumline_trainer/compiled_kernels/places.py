"""Where compiled kernels are kept: beside the checkpoints, in their folder or bucket."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from drumline_trainer.buckets.objects import ObjectBucket
from drumline_trainer.checkpoint.folder_files import sync_folder, write_durably
from drumline_trainer.checkpoint.shard_file import read_bounded
from drumline_trainer.rank_protocol.placement import Placement

NAME: Final = "kernels"
PROGRAMS: Final = 4
"""So many of the newest stay."""
_PROGRAM: Final = re.compile(r"[0-9a-f]{32}")
_ABANDONED_SECONDS: Final = 3600.0
"""After which a file that somebody was writing is removed."""


class KernelPlace(Protocol):
    """Holds files by the names of programs."""

    def where(self, name: str) -> str:
        """For messages."""
        ...

    def read(self, name: str, *, limit: int) -> bytes | None:
        """The whole of a file; None where there is none.

        Raises:
            OSError, CorruptCheckpointError: it cannot be read, or is larger than `limit` bytes.
        """
        ...

    def write(self, name: str, body: bytes) -> None:
        """Write a file, whole or not at all. Raises OSError."""
        ...

    def prune(self) -> None:
        """Remove all programs but the newest. Raises OSError."""
        ...


def kernel_place(placement: Placement) -> KernelPlace | None:
    """Beside this rank's checkpoints; None where there are none.

    Raises:
        OSError, ValueError: a bucket that cannot be opened.
    """
    if placement.checkpoint_bucket is not None:
        return KernelBucket(bucket=ObjectBucket(placement.checkpoint_bucket))
    if placement.checkpoint_folder is not None:
        return KernelFolder(path=placement.checkpoint_folder / NAME)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFolder:
    """A `KernelPlace` in the folder of the checkpoints."""

    path: Path

    def where(self, name: str) -> str:
        """The path."""
        return str(self.path / name)

    def read(self, name: str, *, limit: int) -> bytes | None:
        """See `KernelPlace`; no link is followed and no pipe waited for."""
        path = self.path / name
        return read_bounded(path, limit=limit) if os.path.lexists(path) else None

    def write(self, name: str, body: bytes) -> None:
        """See `KernelPlace`: of several writers the last one's stays."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            write_durably(own, body)
            own.rename(path)
        finally:
            own.unlink(missing_ok=True)
        sync_folder(path.parent)
        self._remove_abandoned(path.parent)

    def prune(self) -> None:
        """See `KernelPlace`."""
        programs = [entry for entry in self.path.iterdir() if _PROGRAM.fullmatch(entry.name)]
        programs.sort(key=lambda entry: entry.lstat().st_mtime, reverse=True)
        for entry in programs[PROGRAMS:]:
            shutil.rmtree(entry, ignore_errors=True)

    def _remove_abandoned(self, folder: Path) -> None:
        before = time.time() - _ABANDONED_SECONDS
        for entry in folder.glob(".*"):
            with suppress(FileNotFoundError):
                if entry.lstat().st_mtime < before:
                    entry.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBucket:
    """A `KernelPlace` below the prefix of the checkpoints."""

    bucket: ObjectBucket

    def where(self, name: str) -> str:
        """The URL."""
        return f"{self.bucket.url}/{NAME}/{name}"

    def read(self, name: str, *, limit: int) -> bytes | None:
        """See `KernelPlace`."""
        stored = self.bucket.get(f"{NAME}/{name}", limit=limit)
        return None if stored is None else stored.body

    def write(self, name: str, body: bytes) -> None:
        """See `KernelPlace`."""
        self.bucket.put(f"{NAME}/{name}", body)

    def prune(self) -> None:
        """See `KernelPlace`."""
        written = self.bucket.times(NAME)
        programs: dict[str, None] = {}
        for key in sorted(written, key=written.__getitem__, reverse=True):
            programs[key.split("/")[1]] = None
        for program in list(filter(_PROGRAM.fullmatch, programs))[PROGRAMS:]:
            self.bucket.delete_place(f"{NAME}/{program}")
