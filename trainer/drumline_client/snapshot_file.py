"""Read and write snapshot files. Python 3.9, standard library only.

    <snapshot folder>/rank-00003/step-00000042.snapshot

A file is 8 bytes (little-endian length of the header), 32 bytes (SHA-256 of the header), the header
as JSON, and the body: one rank's shards, of the bundled trainer (`recovery.rank_snapshots`) or of a
user's program (`state_tree`). The header carries the body's digest, so any changed bit is detected.
A file of such a name is complete: it was renamed to it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

KEPT_SNAPSHOTS: Final = 2
"""Snapshots kept per rank. While the newest is copied to a peer, the previous one is still complete
there."""
MAX_HEADER_BYTES: Final = 1 << 20
_PREFIX_BYTES = 40
_NAME = re.compile(r"step-(\d{8,})\.snapshot")


class SnapshotError(RuntimeError):
    """The file cannot be used: it is damaged, or a different snapshot."""


@dataclass(frozen=True)
class SnapshotHeader:
    """Content of one file."""

    rank: int
    step: int
    world_size: int
    generation: int
    attempt: int
    config: str
    """Digest of the trainer's configuration, or format of the body for a user's program."""
    trainer: Mapping[str, Any]
    """State of the bundled trainer: the cursor, and losses that no file has yet. Else empty."""
    body_bytes: int
    sha256: str
    """SHA-256 of the body."""

    def encode(self) -> bytes:
        """Return the part of the file before the body."""
        # Sorted keys and fixed separators give the same digest for equal headers.
        body = json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()
        return len(body).to_bytes(8, "little") + hashlib.sha256(body).digest() + body


def rank_folder(folder: Path, rank: int) -> Path:
    """Return the folder of a rank's snapshots."""
    return folder / f"rank-{rank:05d}"


def snapshot_file(folder: Path, *, rank: int, step: int) -> Path:
    """Return the file of one rank and step.

    Args:
        folder: folder of all snapshots of the pod.
        rank: global rank.
        step: number of finished steps.
    """
    return rank_folder(folder, rank) / f"step-{step:08d}.snapshot"


def snapshot_steps(folder: Path, *, rank: int) -> list[int]:
    """Return the steps with a complete file of this rank, newest first."""
    try:
        # A missing folder is a rank without snapshots, not an error.
        entries = list(rank_folder(folder, rank).iterdir())
    except FileNotFoundError:
        return []
    matches = (_NAME.fullmatch(entry.name) for entry in entries)
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def write_snapshot(folder: Path, header: SnapshotHeader, body: Sequence[memoryview]) -> int:
    """Write under a temporary name, rename, and delete old files. Return the file's size in bytes.

    An fsync is not needed, because the folder is in memory.

    Args:
        folder: folder of all snapshots of the pod.
        header: rank, step and description of the state.
        body: packed tensors.

    Raises:
        OSError: the folder is full. The unfinished file is removed.
    """
    path = snapshot_file(folder, rank=header.rank, step=header.step)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    head = header.encode()
    # Phase 1: write under another name. Readers only accept the final pattern.
    try:
        with unfinished.open("wb", buffering=0) as file:
            for part in (memoryview(head), *body):
                # Unbuffered writes can be partial, so continue after the written bytes.
                rest = part
                while rest:
                    rest = rest[file.write(rest) :]
        # Phase 2: a rename is atomic within the folder.
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # half a file would take the memory of the next one
        raise
    # Phase 3: delete old files last, so that one complete file always exists.
    keep_newest(folder, rank=header.rank)
    return len(head) + header.body_bytes


def keep_newest(folder: Path, *, rank: int) -> None:
    """Remove all but the newest snapshots of a rank."""
    for step in snapshot_steps(folder, rank=rank)[KEPT_SNAPSHOTS:]:
        snapshot_file(folder, rank=rank, step=step).unlink(missing_ok=True)


def read_header(path: Path) -> SnapshotHeader:
    """Return the header, checked against its own digest. The body is not read.

    Raises:
        SnapshotError: the file is missing, truncated, damaged, or not a snapshot.
    """
    try:
        with path.open("rb") as file:
            return _header_of(file, path)
    except OSError as error:
        raise SnapshotError(f"{path.name}: {error.strerror}") from error


@contextmanager
def open_snapshot(path: Path) -> Generator[tuple[SnapshotHeader, memoryview], None, None]:
    """Return the header and the body in memory, both checked against their digests.

    Writes to the body change a private copy.

    Raises:
        SnapshotError: the file is missing, damaged, or not a snapshot.
    """
    try:
        with path.open("rb") as file:
            header = _header_of(file, path)
            start = file.tell()
            # ACCESS_COPY: torch wants a writable buffer, and the file must not change.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{path.name}: {error}") from error
    with mapped, memoryview(mapped) as whole, whole[start:] as body:
        # The length is compared first, because a truncated file is cheap to detect.
        intact = len(body) == header.body_bytes
        if not intact or hashlib.sha256(body).hexdigest() != header.sha256:
            raise SnapshotError(f"{path.name}: the body does not match the header")
        yield header, body


def _header_of(file: BinaryIO, path: Path) -> SnapshotHeader:
    """Read the header. The file position is then at the body."""
    # 8 bytes of length and 32 bytes of SHA-256.
    prefix = file.read(_PREFIX_BYTES)
    size = int.from_bytes(prefix[:8], "little")
    # The bound prevents a damaged length from reading the whole body.
    body = file.read(size) if size <= MAX_HEADER_BYTES else b""
    if not body or hashlib.sha256(body).digest() != prefix[8:]:
        raise SnapshotError(f"{path.name}: the header is damaged")
    raw = json.loads(body)
    # Exact fields: another version of the client wrote the file.
    if set(raw) != {field.name for field in fields(SnapshotHeader)}:
        raise SnapshotError(f"{path.name}: the header has another format version")
    return SnapshotHeader(**raw)
