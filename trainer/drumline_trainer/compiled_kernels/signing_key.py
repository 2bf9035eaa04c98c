"""The key that kept kernels are signed with: of the job, or of the user who launches runs.

A job's token is equal for all its pods and generations, and secret to them (decision 3). A run
without an operator has no token, so a file in the user's home is used.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline_contract import TOKEN_FILE, TOKEN_FILE_VARIABLE, sign

_PURPOSE: Final = b"compiled kernels"
_KEY_BYTES: Final = 32


class NoKeyError(Exception):
    """There is no key that is secret to this job or user; the message has the cause."""


def signing_key(*, in_job: bool, environ: Mapping[str, str]) -> bytes:
    """Derive the key from the job's token, or from a file in the user's home that is created here.

    Raises:
        NoKeyError: neither can be read, or other users can read the file.
    """
    try:
        if in_job:
            secret = Path(environ.get(TOKEN_FILE_VARIABLE, TOKEN_FILE)).read_bytes()
        else:
            secret = _user_secret(_file_of_user(environ))
    except OSError as error:
        raise NoKeyError(f"{error.filename}: {error.strerror}") from None
    if not secret:
        raise NoKeyError("the job's token is empty")
    # A purpose separates this key from other uses of the token.
    return bytes.fromhex(sign(secret, _PURPOSE))


def _file_of_user(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    state = environ.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else "")
    # A relative path would depend on the working directory.
    if not Path(state).is_absolute():
        raise NoKeyError("this user has no home to keep a key in")
    return Path(state) / "drumline" / "kernels.key"


def _user_secret(path: Path) -> bytes:
    """Return the file's secret. A missing file is created with a random one.

    Raises:
        OSError: it cannot be read or created.
        NoKeyError: other users can read it, or its size is wrong.
    """
    if not os.path.lexists(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(path)
    # NOFOLLOW and NONBLOCK: a link or a pipe in the place of the key must not mislead or block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        # The open file is checked, not its name, which could change in between.
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise NoKeyError(f"{path} is not a file of this user")
        if status.st_mode & 0o077:
            raise NoKeyError(f"others can read {path}; run: chmod 600 {path}")
        # One byte more than needed shows a file that is too long.
        secret = file.read(_KEY_BYTES + 1)
    if len(secret) != _KEY_BYTES:
        raise NoKeyError(f"{path} holds no key of {_KEY_BYTES} bytes; remove it")
    return secret


def _make(path: Path) -> None:
    """Make the key atomically and once. If several ranks make one, the first key stays."""
    own = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        # link fails if the name exists, unlike rename, so the first key stays.
        with suppress(FileExistsError):
            os.link(own, path)
    finally:
        own.unlink()
