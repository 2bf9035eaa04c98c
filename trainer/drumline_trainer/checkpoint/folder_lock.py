"""The lock of a checkpoint folder: flock, or a lock file where the file system has no flock.

Only short changes of names are made under the lock. A lock file whose owner crashed is broken after
`EXPIRY_SECONDS` in which it did not change.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from drumline_contract.regular_files import open_regular

EXPIRY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_MAX_NAME_BYTES: Final = 64
_WITHOUT_FLOCK: Final = frozenset(
    {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
)
"""Answers of a network file system that has no locks."""


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold the folder's lock. Raises OSError."""
    # Another writer of the storage may have put a link or a pipe there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(folder / "lock", flags, 0o666), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, or its holder dies
        except OSError as error:
            if error.errno not in _WITHOUT_FLOCK:
                raise
        else:
            yield
            return
    with _lock_file(folder / "lock.held"):
        yield


@contextmanager
def _lock_file(path: Path) -> Generator[None]:
    """Hold a file that only one process can create."""
    name = secrets.token_hex(8).encode()
    _create(path, name)
    try:
        yield
    finally:
        if _content(path) == name:
            path.unlink(missing_ok=True)


def _create(path: Path, name: bytes) -> None:
    seen, since = None, time.monotonic()
    while True:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            try:
                os.write(descriptor, name)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return
        holder = _content(path)
        if holder != seen:
            seen, since = holder, time.monotonic()
        elif time.monotonic() - since >= EXPIRY_SECONDS:
            _break(path, seen, aside=path.with_name(f"{path.name}.{name.decode()}"))
        time.sleep(_POLL_SECONDS)


def _break(path: Path, holder: bytes | None, *, aside: Path) -> None:
    """Remove an expired lock file. A rename is atomic, so a newer one is noticed and put back."""
    with suppress(FileNotFoundError):
        path.rename(aside)
        if _content(aside) != holder:
            with suppress(OSError):
                os.link(aside, path)
        aside.unlink(missing_ok=True)


def _content(path: Path) -> bytes | None:
    with suppress(OSError), open_regular(path) as file:
        return file.read(_MAX_NAME_BYTES)
    return None
