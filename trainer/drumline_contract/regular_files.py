"""Open files that users name: regular files alone, at once, and read within a limit.

A pipe with no writer would block the process, and a device has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

LFS_POINTER: Final = b"version https://git-lfs.github.com/"
"""First bytes of the small file that Git leaves in place of a large one without Git LFS."""
LFS_WORDS: Final = "a pointer of Git LFS and not its file (git lfs pull)"


class NotRegularError(OSError):
    """The path names a pipe, a device, a socket or a folder."""


def open_regular(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, without waiting for a writer.

    Raises:
        NotRegularError: it is something else.
        OSError: it is missing or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError(errno.EISDIR, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=buffering)


def read_regular(path: Path, *, limit: int) -> bytes:
    """Read the whole of a regular file.

    Raises:
        OSError: see `open_regular`; or it is larger than `limit` bytes.
    """
    with open_regular(path) as file:
        body = file.read(limit + 1)
    if len(body) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return body
