"""Name the folder that is full, for an error such as `No space left on device`.

The error names no folder when a write fails, and torch's `save` hides the error altogether. The
file systems of the pod tell which one it was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

LEAST_BYTES: Final = 64 << 10
"""Room below which a file system counts as full."""
_NO_SPACE = re.compile(r"(No space left on|Disk quota exceeded on|Read-only file system on) device")
_QUOTA = re.compile(r"(Disk quota exceeded|Read-only file system)(?! on)")
_HIDDEN = re.compile(r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+")
_PATH = re.compile(r"(?<![\w./])/[\w./+@-]{1,256}")
_KERNEL: Final = ("/proc", "/sys", "/dev/pts", "/dev/mqueue", "/etc/", "/run/secrets", "/var/run/")


def with_full_folder(
    error: str,
    *,
    mounts: Callable[[], Iterable[str]] | None = None,
    is_full: Callable[[str], bool] | None = None,
) -> str:
    """Return the error with the folder that is full, or unchanged if it is about something else.

    Example: `OSError: [Errno 28] No space left on device` -> `... No space left on /checkpoints`.

    Args:
        error: the last exception of a program.
        mounts: mount points; by default those of this process.
        is_full: whether the file system of a mount point is full; by default it is asked.
    """
    text = _QUOTA.sub(r"\1 on device", error)
    hidden = _HIDDEN.search(text) is not None
    if not hidden and not _NO_SPACE.search(text):
        return error
    points = sorted(mounts() if mounts else mount_points(), key=len, reverse=True)
    # Only a path tells whose quota is used up, or what is read-only: such a folder has room.
    asks = hidden or "No space" in text
    full = [point for point in points if asks and (is_full or has_no_room)(point)]
    named = next((_mount_of(path, points) for path in _PATH.findall(text)), None)
    folder = named if named in full or not full else full[0]
    if folder is None or (hidden and folder not in full):
        return error
    if hidden:
        return f"No space left on {folder}: {error}"
    return _NO_SPACE.sub(lambda match: f"{match[1]} {folder}", text)


def mount_points(table: Path = Path("/proc/self/mounts")) -> list[str]:
    """Return the mount points of a container, without those of the kernel and the kubelet."""
    try:
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    points = (line.split(" ")[1].replace("\\040", " ") for line in lines if line.count(" ") > 1)
    return list(dict.fromkeys(point for point in points if not point.startswith(_KERNEL)))


def has_no_room(folder: str) -> bool:
    """Return whether a file system has no room for a file. False if that is unknown."""
    with suppress(OSError):
        room = os.statvfs(folder)
        # Nothing was written to a read-only file system, such as an image that is always full.
        if not room.f_blocks or room.f_flag & os.ST_RDONLY:
            return False
        return room.f_bavail * room.f_frsize < LEAST_BYTES or (
            room.f_files > 0 and not room.f_favail
        )
    return False


def _mount_of(path: str, points: Iterable[str]) -> str | None:
    """Return the mount point of a path, but not the root."""
    for point in points:
        if point != "/" and (path == point or path.startswith(f"{point}/")):
            return point
    return None
