"""The samples of a tar as WebDataset makes them: members in a row that share a key.

The key is the name up to the first dot of its last part; what follows is the ending. So 0007.json
and 0007.txt are one sample. A tar without compression can be read from any sample on.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from drumline_contract.config import ConfigError
from drumline_contract.regular_files import NotRegularError, open_regular

TAR_SUFFIX: Final = ".tar"


@dataclass(frozen=True, slots=True, kw_only=True)
class TarSample:
    """Members of an open tar; their content can be read until the next sample is asked for."""

    tar: tarfile.TarFile
    path: Path
    key: str
    members: tuple[tarfile.TarInfo, ...]
    after: int
    """Bytes of the tar before the next sample."""

    def content(self, member: tarfile.TarInfo, *, most: int) -> bytes:
        """Return at most `most` bytes of a member.

        Raises:
            ConfigError: the tar is truncated.
        """
        with _named_errors(self.path):
            # A member is read lazily, so a damaged tar may fail only here.
            file = self.tar.extractfile(member)
            return b"" if file is None else file.read(most)


def tar_samples(path: Path, *, offset: int = 0) -> Iterator[TarSample]:
    """Yield the samples from a position of `TarSample.after`; 0 for all.

    Raises:
        ConfigError: it is compressed, damaged, or truncated.
        OSError: its storage fails.
    """
    with _named_errors(path), open_regular(path) as file:
        # The size is that of the open file. A tar that grows meanwhile ends here.
        size = os.fstat(file.fileno()).st_size
        if offset >= size:
            return
        file.seek(offset)
        # "r:" excludes compression: an offset into a compressed tar is of no use.
        with tarfile.open(fileobj=file, mode="r:") as tar:
            # Directories and links are no data. Hidden files would begin samples of their own.
            members = (
                member for member in _members(tar) if member.isreg() and not _is_hidden(member.name)
            )
            groups = ((key, tuple(group)) for key, group in groupby(members, key=_key))
            # Pairs of neighbours: a sample ends where the next one's first header begins. The
            # sentinel closes the last one.
            for (key, own), (_, following) in pairwise(chain(groups, [("", ())])):
                after = following[0].offset if following else size
                yield TarSample(tar=tar, path=path, key=key, members=own, after=after)
            # a header that is damaged ends the members as the end of the tar does
            file.seek(tar.offset)
            # A tar ends with blocks of zeros. Anything else here is a header that tarfile could not
            # read.
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise tarfile.ReadError(f"no header of a member at byte {tar.offset}")


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members. The library would keep all of them, up to half of the tar's bytes."""
    for member in tar:
        cast("Any", tar).members.clear()
        yield member


def ending(member: tarfile.TarInfo) -> str:
    """Return the part of a name after the key: `.txt`, or `.en.txt`."""
    _, dot, rest = PurePosixPath(member.name).name.partition(".")
    return f"{dot}{rest}".lower()


def _key(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    return str(path.with_name(path.name.partition(".")[0]))


def _is_hidden(name: str) -> bool:
    """Return whether a file is hidden, such as macOS's `._0001.jpg` beside every file."""
    return PurePosixPath(name).name.startswith(".")


@contextmanager
def _named_errors(path: Path) -> Generator[None]:
    try:
        yield
    except NotRegularError as error:
        raise ConfigError(f"data.source: {path}: {error.strerror}") from error
    except (tarfile.TarError, EOFError) as error:  # an OSError is the storage's, and may pass
        raise ConfigError(
            f"data.source: {path}: not a whole tar without compression: {error}"
        ) from error
