"""Pack a folder into one archive. The same files give the same bytes on any machine.

Names are sorted. Times, owners and modes are omitted, except the executable bit. Files that the
reader in the pod would reject are rejected here, with advice.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drumline_cli.errors import BadInput
from drumline_contract import (
    MAX_CODE_BYTES,
    MAX_CODE_FILES,
    MAX_UNPACKED_BYTES,
    code_digest,
    link_stays_inside,
    plain,
)

# A tar header takes one block per file.
_BLOCK: Final = 512
_GZIP: Final = 31
"""zlib's `wbits` for gzip; without a name or a time in it."""
_LARGEST_NAMED: Final = 3
_INSTEAD: Final = (
    "exclude files with .drumlineignore, read data from a claim (--claim NAME=/data), let pods"
    " fetch the code (--code-from git, or s3://BUCKET for a folder), read it from a claim"
    " (--code-from claim:NAME/FOLDER), or build an image with the code and use --no-code"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLimits:
    """Limits of a packed folder, by its destination."""

    packed_bytes: int
    unpacked_bytes: int
    files: int
    compression: int
    """Compression level of zlib. The packed bytes depend on it."""
    instead: str
    """Advice if a folder exceeds the limits."""


IN_CONFIG_MAPS: Final = PackLimits(
    packed_bytes=MAX_CODE_BYTES,
    unpacked_bytes=MAX_UNPACKED_BYTES,
    files=MAX_CODE_FILES,
    compression=9,
    instead=_INSTEAD,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFolder:
    """A packed folder and what is in it."""

    content: bytes
    files: int

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hexadecimal digits."""
        return code_digest(self.content)


def pack(
    folder: Path, paths: Sequence[str], *, limits: PackLimits = IN_CONFIG_MAPS
) -> PackedFolder:
    """Return the archive of these files.

    Args:
        folder: folder to which the paths are relative.
        paths: paths of files and symbolic links.
        limits: limits of the place where it is kept.

    Raises:
        BadInput: the folder has no files, too many or too large files, or an unsupported file.
    """
    # An empty archive would fail only in the pods.
    if not paths:
        raise BadInput(
            f"{folder}: git lists no files here, so there is no code to pack; check whether a"
            " .gitignore above ignores the folder, or use --no-code if the image has the code"
        )
    if len(paths) > limits.files:
        raise BadInput(f"{folder}: {len(paths)} files are over {limits.files}; {limits.instead}")
    # Sizes are added before the files are read, so a large folder fails quickly.
    sizes = {path: _size(folder, path) for path in paths}
    if sum(sizes.values()) > limits.unpacked_bytes:
        raise BadInput(_too_large(folder, sizes, limits, packed=False))
    archive = io.BytesIO()
    # USTAR has no extended headers, so the bytes depend on the files only.
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        # Sorted names make equal folders equal archives on every machine.
        for path in sorted(paths):
            _add(tar, folder, path)
    content = zlib.compress(archive.getvalue(), level=limits.compression, wbits=_GZIP)
    # Padding can push the archive over the limit.
    if archive.tell() > limits.unpacked_bytes:
        raise BadInput(_too_large(folder, sizes, limits, packed=False))
    if len(content) > limits.packed_bytes:
        raise BadInput(_too_large(folder, sizes, limits, packed=True))
    return PackedFolder(content=content, files=len(paths))


def _size(folder: Path, path: str) -> int:
    try:
        return (folder / path).lstat().st_size + _BLOCK
    except OSError as error:
        raise BadInput(f"{folder / path}: {error.strerror}") from None


def _add(tar: tarfile.TarFile, folder: Path, path: str) -> None:
    info = tarfile.TarInfo(path)
    where = folder / path
    try:
        # The name must be UTF-8, since the reader in the pod expects it.
        path.encode()
        mode = where.lstat().st_mode
        content = b""
        if stat.S_ISLNK(mode):
            info.type, info.linkname = tarfile.SYMTYPE, str(where.readlink())
            info.linkname.encode()
            # A link that leaves the folder would read other files in the pod.
            if not link_stays_inside(path, info.linkname):
                raise BadInput(
                    f"{plain(path)} is a link to {plain(info.linkname)}, outside of the folder or"
                    " through a detour; exclude it with .drumlineignore, or copy its target"
                )
        elif stat.S_ISREG(mode):
            content = where.read_bytes()
            # Only the executable bit is kept. Other bits depend on the user's umask.
            info.mode = 0o755 if mode & 0o111 else 0o644
        else:
            raise BadInput(f"{plain(path)} is neither a file nor a link; exclude it")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    except UnicodeEncodeError:
        raise BadInput(f"{os.fsencode(path)!r}: the file's name is not UTF-8; rename it") from None
    except ValueError:  # tarfile's, of names that ustar has no room for
        raise BadInput(
            f"{plain(path)}: the path or the link's target is too long (255 and 100 bytes at most);"
            " shorten it"
        ) from None
    except OSError as error:
        raise BadInput(f"{where}: {error.strerror}") from None


def _too_large(folder: Path, sizes: dict[str, int], limits: PackLimits, *, packed: bool) -> str:
    limit = limits.packed_bytes if packed else limits.unpacked_bytes
    what = "packed files" if packed else "files"
    # The largest files are usually data that should not be in the code.
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:_LARGEST_NAMED]
    named = ", ".join(f"{plain(path)} ({sizes[path] / 1e6:.1f} MB)" for path in largest)
    bound = f"{limit / 1e6:.1f} MB"
    return f"{folder}: the {what} are over {bound}; the largest: {named}. {limits.instead}"
