"""Place of compiled kernels beside the checkpoints, in their folder or bucket."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from stat import S_ISDIR
from typing import Final, Protocol

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.buckets.objects import ObjectBucket
from drumline_trainer.checkpoint.folder_files import write_durably
from drumline_trainer.checkpoint.shard_file import read_bounded

NAME: Final = "kernels"
PROGRAMS: Final = 4
"""Number of the newest programs that are kept."""
_PROGRAM: Final = re.compile(r"[0-9a-f]{32}")
_FILE: Final = re.compile(r"\d+-\d+\.kernels")
_BEING_WRITTEN: Final = re.compile(rf"\.{_FILE.pattern}\.[0-9a-f]{{16}}")
_ABANDONED_SECONDS: Final = 3600.0
"""After which a file that somebody was writing is removed."""
_MAX_ENTRIES: Final = 10_000
"""Maximum number of examined entries of a place. Other tenants may fill it."""


class KernelPlace(Protocol):
    """Holds files by the names of programs."""

    def where(self, name: str) -> str:
        """Return the place's name for messages."""
        ...

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Read a file. None: it does not exist.

        Raises:
            OSError: it cannot be read.
            CorruptCheckpointError: it cannot be read, or is larger than `limit` bytes.
        """
        ...

    def write(self, name: str, body: bytes) -> None:
        """Write a file, whole or not at all. Raises OSError."""
        ...

    def prune(self) -> None:
        """Remove all programs but the newest. Raises OSError."""
        ...


def kernel_place(placement: Placement) -> KernelPlace | None:
    """Return the place beside this rank's checkpoints. None: there are none.

    Raises:
        OSError: a bucket cannot be opened.
        ValueError: likewise.
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
        """Return the path."""
        return str(self.path / name)

    def read(self, name: str, *, limit: int) -> bytes | None:
        """See `KernelPlace`; no link is followed and no pipe waited for."""
        program, file = name.split("/")
        try:
            # Each level is opened without following links, and the next one relative to it.
            with _opened(self.path) as above, _opened(program, above=above) as folder:
                # lstat separates a missing file from one that cannot be read.
                os.lstat(file, dir_fd=folder)
                return read_bounded(Path(file), limit=limit, folder=folder)
        except FileNotFoundError:
            return None

    def write(self, name: str, body: bytes) -> None:
        """See `KernelPlace`. If several ranks write, the last file stays."""
        program, file = name.split("/")
        # The folder of the checkpoints may not exist before the first one.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _opened(self.path, make=True) as above,
            _opened(program, above=above, make=True) as folder,
        ):
            # A random suffix keeps concurrent writers apart.
            own = f".{file}.{secrets.token_hex(8)}"
            try:
                write_durably(Path(own), body, folder=folder)
                # The rename is atomic, so a reader sees an old or a new file.
                os.rename(own, file, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(own, dir_fd=folder)
            # The directory entry must reach the disk too.
            os.fsync(folder)
            # A writer that crashed leaves its partial file for the next one to remove.
            _remove(folder, _BEING_WRITTEN, before=time.time() - _ABANDONED_SECONDS)

    def prune(self) -> None:
        """See `KernelPlace`; what else lies in a program's folder stays, and so does the folder."""
        with _opened(self.path) as above:
            # Only names of our form are counted. Other files of tenants stay.
            programs = [status for status in _statuses(above, _PROGRAM) if S_ISDIR(status[1])]
            programs.sort(key=lambda status: status[2], reverse=True)
            for program, _, _ in programs[PROGRAMS:]:
                # Another rank may prune at the same time.
                with suppress(OSError):
                    with _opened(program, above=above) as folder:
                        _remove(folder, _FILE, before=math.inf)
                        _remove(folder, _BEING_WRITTEN, before=math.inf)
                    # rmdir fails for a folder with other files, which then stays.
                    os.rmdir(program, dir_fd=above)


@contextmanager
def _opened(path: str | Path, *, above: int | None = None, make: bool = False) -> Generator[int]:
    """Open a folder of the claim without following links, because other tenants may write there.

    Operations by descriptor stay in this folder, even if its name is replaced meanwhile.

    Raises:
        OSError: it does not exist, or is not a folder.
    """
    # mkdir does not follow a link at the last component.
    if make:
        with suppress(FileExistsError):
            os.mkdir(path, dir_fd=above)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _statuses(folder: int, form: re.Pattern[str]) -> list[tuple[str, int, float]]:
    """List the names of this form, with their kinds and times of writing."""
    statuses: list[tuple[str, int, float]] = []
    with os.scandir(folder) as entries:
        # The bound limits the work that other tenants can cause.
        for entry in islice(entries, _MAX_ENTRIES):
            if form.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    statuses.append((entry.name, status.st_mode, status.st_mtime))
    return statuses


def _remove(folder: int, form: re.Pattern[str], *, before: float) -> None:
    for name, _, written in _statuses(folder, form):
        if written < before:
            with suppress(OSError):  # another was first, or it is a folder
                os.unlink(name, dir_fd=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBucket:
    """A `KernelPlace` below the prefix of the checkpoints."""

    bucket: ObjectBucket

    def where(self, name: str) -> str:
        """Return the URL."""
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
        written = self.bucket.times(NAME, most=_MAX_ENTRIES)
        # A dict keeps the order of the newest file of each program and removes repetitions.
        programs: dict[str, None] = {}
        for key in sorted(written, key=written.__getitem__, reverse=True):
            programs[key.split("/")[1]] = None
        for program in list(filter(_PROGRAM.fullmatch, programs))[PROGRAMS:]:
            self.bucket.delete_place(f"{NAME}/{program}")
