"""A folder of compiled kernels as one signed file, and back.

drumline compiled kernels 1
<HMAC-SHA256 of the program's name and the rest, hex>
<a zip of the folder>
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline_contract import sign, verify

MOST_BYTES: Final = 256 << 20
"""Maximum size of a file in bytes. A layer's kernels are a few MB."""
_MAX_UNPACKED: Final = 4 * MOST_BYTES
_TITLE: Final = b"drumline compiled kernels 1\n"
_SIGNATURE_CHARACTERS: Final = 64
_HEADER: Final = re.compile(re.escape(_TITLE) + rb"([0-9a-f]{%d})\n" % _SIGNATURE_CHARACTERS)
_HEADER_BYTES: Final = len(_TITLE) + _SIGNATURE_CHARACTERS + 1
_LEFT_OUT: Final = frozenset({"locks"})
"""Folders that are not archived: the lock files of the processes that compiled."""


class RefusedError(Exception):
    """A file is not taken, or not made; says why."""


def seal(folder: Path, *, program: str, key: bytes, began_ns: int) -> bytes:
    """Pack and sign the files of a folder, but for those that appear or vanish meanwhile.

    A compiler writes a library under its final name. A file written since `began_ns` (of the epoch)
    may thus be incomplete, and would fail at every start.

    Args:
        folder: the compiler's folder.
        program: digest of the program.
        key: key of the signature.
        began_ns: time at which the compiler began, in nanoseconds.

    Raises:
        RefusedError: the files are too large.
        OSError: one cannot be read.
    """
    sealed = io.BytesIO()
    # Room for the header, whose signature covers the body that follows.
    sealed.write(bytes(_HEADER_BYTES))
    total = 0
    # Level 1: kernels are read once at a start, so speed matters more than size.
    with zipfile.ZipFile(sealed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in _files(folder):
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                # The time is read after the content: a change in between shows in it.
                if path.stat().st_mtime_ns >= began_ns:
                    continue
                total += len(content)
                # The unpacked size is bounded too, because `_unpack` rejects more than 4 times the
                # limit.
                if max(total // 4, sealed.tell()) > MOST_BYTES:
                    raise RefusedError(f"they are more than {MOST_BYTES >> 20} MiB")
                archive.writestr(str(path.relative_to(folder)), content)
    with sealed.getbuffer() as whole, whole[_HEADER_BYTES:] as body:
        # The signature covers the program's name, so a file cannot serve for another program.
        whole[:_HEADER_BYTES] = _TITLE + sign(key, program.encode(), body).encode() + b"\n"
    return sealed.getvalue()


def unseal(sealed: bytes, folder: Path, *, program: str, key: bytes) -> None:
    """Unpack the sealed files into `folder`, all or none. A folder with files stays unchanged.

    Args:
        sealed: content of the signed file.
        folder: the compiler's folder.
        program: digest of the program.
        key: key of the signature.

    Raises:
        RefusedError: the signature does not fit this key, program and content, or the file is bad.
        OSError: the folder cannot be written.
    """
    header = _HEADER.match(sealed)
    if header is None:
        raise RefusedError("it is not a file of compiled kernels")
    body = memoryview(sealed)[_HEADER_BYTES:]
    # The signature is checked before the zip is parsed: pickles and libraries execute code.
    if not verify(key, header[1].decode(), program.encode(), body):
        raise RefusedError("its signature is not this job's")
    # A folder beside the target lets the rename be atomic.
    unpacked = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _unpack(sealed, unpacked)
        with suppress(OSError):  # another process was first
            unpacked.rename(folder)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _unpack(sealed: bytes, folder: Path) -> None:
    """Unpack a zip. It is found from its end, so it need not be copied out of the file.

    Raises:
        RefusedError: it is damaged, or too large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(sealed)) as archive:
            # Sizes are checked before anything is written.
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_UNPACKED:
                raise RefusedError("it holds too much")
            archive.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RefusedError(f"it cannot be unpacked: {error}") from None


def _files(folder: Path) -> list[Path]:
    """Return the files of torch's cache. Names that begin with a dot are unfinished."""
    files: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        files += [Path(parent) / name for name in sorted(names) if not name.startswith(".")]
    return files
