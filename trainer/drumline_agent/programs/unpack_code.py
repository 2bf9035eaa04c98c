"""A user's packed code becomes a folder of the pod.

The archive is the user's own, but its reader runs in a container of the platform. It therefore
knows the one form that `drumline run` writes and nothing else: an ustar archive (POSIX.1-1988) of
regular files and symbolic links. Everything is bounded before it is parsed, every name is checked
before anything is written, and links are made last, so that no file is written through one.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drumline_contract import (
    MAX_CODE_FILES,
    MAX_CODE_PART_BYTES,
    MAX_CODE_PARTS,
    MAX_UNPACKED_BYTES,
    code_digest,
    link_stays_inside,
    plain,
)

_BLOCK: Final = 512
_GZIP: Final = 31
"""zlib's `wbits` for gzip with the largest window."""
_OCTAL: Final = re.compile(rb"([0-7]+)[ \0]*")


class BadCodeArchive(Exception):  # noqa: N818 - read as a sentence: raise BadCodeArchive
    """The packed code is not what the job names, or not what `drumline run` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """A regular file of the archive."""

    path: str
    content: memoryview
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLink:
    """A symbolic link that stays inside the folder."""

    path: str
    target: str


CodeEntry = CodeFile | CodeLink


def read_parts(folder: Path) -> bytes:
    """Join the packed code from its parts, `0`, `1`, ...

    Raises:
        BadCodeArchive: there is no part, or one is too large.
        OSError: one cannot be read.
    """
    parts: list[bytes] = []
    for number in range(MAX_CODE_PARTS):
        part = folder / str(number)
        if not part.exists():
            break
        with part.open("rb") as file:
            parts.append(file.read(MAX_CODE_PART_BYTES + 1))
        if len(parts[-1]) > MAX_CODE_PART_BYTES:
            raise BadCodeArchive(f"part {number} is over {MAX_CODE_PART_BYTES} bytes")
    if not parts:
        raise BadCodeArchive(f"{folder} holds no part of it")
    return b"".join(parts)


def code_entries(packed: bytes, *, digest: str) -> list[CodeEntry]:
    """Return the entries of the archive, which is checked as a whole.

    Args:
        packed: the gzipped archive.
        digest: the expected digest.

    Raises:
        BadCodeArchive: it has another digest, is too large, or has an entry that is neither a
            regular
            file nor a link inside the folder.
    """
    actual = code_digest(packed)
    if actual != digest:
        raise BadCodeArchive(f"its digest is {actual}, the job names {plain(digest)}")
    entries: list[CodeEntry] = []
    kinds: dict[str, bool] = {}
    for entry in _ustar_entries(_inflated(packed)):
        if len(entries) == MAX_CODE_FILES:
            raise BadCodeArchive(f"it has over {MAX_CODE_FILES} files")
        _take_name(entry.path, kinds)
        if isinstance(entry, CodeLink) and not link_stays_inside(entry.path, entry.target):
            raise BadCodeArchive(f"{plain(entry.path)}: the link leaves the folder")
        entries.append(entry)
    return entries


def unpack_code(entries: list[CodeEntry], *, target: Path) -> None:
    """Fill the folder with these entries and nothing else.

    Raises:
        OSError: it cannot be written.
    """
    for old in target.iterdir():  # this pod's init containers ran before: a new sandbox
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    for entry in sorted(entries, key=lambda entry: isinstance(entry, CodeLink)):
        path = target / entry.path
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if isinstance(entry, CodeLink):
            path.symlink_to(entry.target)
            continue
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        mode = 0o755 if entry.executable else 0o644
        with open(os.open(path, flags, mode), "wb") as file:  # noqa: PTH123 - no other opens a descriptor
            file.write(entry.content)


def _inflated(packed: bytes) -> memoryview:
    inflater = zlib.decompressobj(_GZIP)
    try:
        raw = inflater.decompress(packed, MAX_UNPACKED_BYTES + 1)
    except zlib.error as error:
        raise BadCodeArchive(f"it is not gzip: {error}") from None
    if len(raw) > MAX_UNPACKED_BYTES:
        raise BadCodeArchive(f"it is over {MAX_UNPACKED_BYTES} bytes when unpacked")
    if not inflater.eof:
        raise BadCodeArchive("its end is missing")
    if inflater.unused_data:
        raise BadCodeArchive("something follows its end")
    return memoryview(raw)


def _ustar_entries(raw: memoryview) -> Iterator[CodeEntry]:
    at = 0
    while True:
        header = bytes(raw[at : at + _BLOCK])
        if len(header) < _BLOCK:
            raise BadCodeArchive("its end is missing")
        if not any(header):  # a block of zeros ends the archive
            return
        _check_header(header)
        path = _path(header)
        size = _number(header[124:136])
        begin, at = at + _BLOCK, at + _BLOCK + -(-size // _BLOCK) * _BLOCK
        if at > len(raw):
            raise BadCodeArchive(f"{plain(path)}: its end is missing")
        match header[156:157]:
            case b"0":
                content = raw[begin : begin + size]
                executable = bool(_number(header[100:108]) & 0o100)
                yield CodeFile(path=path, content=content, executable=executable)
            case b"2" if size == 0:
                yield CodeLink(path=path, target=_text(header[157:257]))
            case _:
                raise BadCodeArchive(f"{plain(path)}: neither a regular file nor a link")


def _check_header(header: bytes) -> None:
    if header[257:265] != b"ustar\x0000":
        raise BadCodeArchive("it is no ustar archive")
    blanked = header[:148] + b" " * 8 + header[156:]
    if sum(blanked) != _number(header[148:156]):
        raise BadCodeArchive("a header of it is damaged")


def _path(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500])
    path = f"{prefix}/{name}" if prefix else name
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise BadCodeArchive(f"{plain(path)!r} leaves the folder")
    return path


def _number(field: bytes) -> int:
    digits = _OCTAL.fullmatch(field)
    if digits is None:
        raise BadCodeArchive("a header of it is damaged")
    return int(digits[1], 8)


def _text(field: bytes) -> str:
    try:
        return field.partition(b"\0")[0].decode()
    except UnicodeDecodeError:
        raise BadCodeArchive("a name of it is not UTF-8") from None


def _take_name(path: str, kinds: dict[str, bool]) -> None:
    """Note the path, and the folders above it: no name is taken twice, none is file and folder.

    Args:
        path: path of the entry.
        kinds: whether each path so far is a folder; gets this one.
    """
    if path in kinds:
        raise BadCodeArchive(f"{plain(path)} is in it twice")
    above = path
    while "/" in above:
        above = above.rpartition("/")[0]
        if not kinds.setdefault(above, True):
            raise BadCodeArchive(f"{plain(path)}: {plain(above)} is no folder")
    kinds[path] = False
