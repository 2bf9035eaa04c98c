"""Official release binaries, downloaded and compared with their published checksums.

A download takes seconds where a build takes minutes. `ensure_binaries` asks here first and builds
whatever did not come. `DRUMLINE_RELEASES` chooses another origin: a folder of a web server that
keeps each file under `HOST/PATH`, or `off` to build at once.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import platform
import re
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ORIGIN_VARIABLE = "DRUMLINE_RELEASES"
_ANSWER_SECONDS = 5.0
"""For the first bytes of a checksum: without a route to the host a build starts after this."""
_STALL_SECONDS = 30.0
_LARGEST_BYTES = 400 << 20
_LARGEST_CHECKSUMS_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_AT_ONCE = 4
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class DownloadError(RuntimeError):
    """A release file did not come, or differs from its checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Addresses of one program's release; `{version}`, `{os}` and `{arch}` are filled in."""

    url: str
    checksums: str
    """A file of one SHA-256 digest, or of lines with a digest and a file name."""
    member: str = ""
    """The program's place in a tar file; empty: the file is the program."""

    def filled(self, version: str, *, system: str, machine: str) -> Release:
        """Return the addresses for one version and platform."""
        arch = _ARCHITECTURES.get(machine.lower(), machine.lower())
        values = {"version": version, "os": system, "arch": arch}
        return Release(
            url=self.url.format(**values),
            checksums=self.checksums.format(**values),
            member=self.member.format(**values),
        )


def download(
    releases: Mapping[str, tuple[Release, Path]],
    *,
    say: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
) -> set[str]:
    """Download programs to their places and return the names of those that came.

    Each program is checked first and renamed into place last: no half a program stays behind.
    When the first checksum cannot be read, nothing else is asked for.

    Args:
        releases: filled addresses and the target file, by the program's name.
        say: takes a line for each program that came, and one with the reason of each other.
        environment: holds `DRUMLINE_RELEASES`.
    """
    origin = environment.get(ORIGIN_VARIABLE, "")
    if origin == "off" or not releases:
        return set()
    first = next(iter(releases.values()))[0]
    try:
        _read(_address(first.checksums, origin))
    except DownloadError as error:
        say(f"no release binaries from here ({error})")
        return set()

    def one(name: str) -> str | None:
        release, target = releases[name]
        try:
            size = _place(release, target, origin=origin)
        except DownloadError as error:
            say(f"  {name}: {error}")
            return None
        say(f"  {name} downloaded: {size / 1e6:.0f} MB, checksum right")
        return name

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {name for name in pool.map(one, releases) if name is not None}


def this_platform() -> tuple[str, str]:
    """Return the names of the operating system and the processor, as releases write them."""
    return sys.platform, platform.machine()


def checksum_of(text: str, *, file: str) -> str | None:
    """Return the digest of a file from a list of checksums, or None.

    Args:
        text: one digest alone, or lines `DIGEST  NAME` (`*NAME` in binary mode).
        file: the name of the file without its folder.
    """
    for line in text.splitlines():
        digest, _, name = line.strip().partition(" ")
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            continue
        if name.strip().lstrip("*") in ("", file):
            return digest
    return None


def _address(url: str, origin: str) -> str:
    """Return an address at the origin: `ORIGIN/HOST/PATH`."""
    return f"{origin.rstrip('/')}/{url.removeprefix('https://')}" if origin else url


def _place(release: Release, target: Path, *, origin: str) -> int:
    """Download one program, compare, unpack and rename it; return its size in bytes."""
    file = release.url.rpartition("/")[2]
    listed = _read(_address(release.checksums, origin)).decode(errors="replace")
    expected = checksum_of(listed, file=file)
    if expected is None:
        raise DownloadError(f"{release.checksums} has no checksum of {file}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fetched = Path(scratch) / file
        digest = _fetch(_address(release.url, origin), fetched)
        if digest != expected:
            raise DownloadError(f"{release.url} differs from its published checksum")
        program = _unpacked(fetched, release.member) if release.member else fetched
        program.chmod(0o755)
        program.rename(target)
    return target.stat().st_size


def _unpacked(archive: Path, member: str) -> Path:
    """Extract one regular file of an archive whose checksum was right."""
    target = archive.with_name("program")
    try:
        with tarfile.open(archive) as tar:
            source = tar.extractfile(member)
            if source is None:
                raise DownloadError(f"{member} of {archive.name} is no file")
            with target.open("wb") as into:
                while chunk := source.read(_CHUNK_BYTES):
                    into.write(chunk)
    except (tarfile.TarError, KeyError) as error:
        raise DownloadError(f"{archive.name} has no {member}: {error}") from error
    return target


def _read(url: str) -> bytes:
    """Return a small file."""
    with _opened(url, seconds=_ANSWER_SECONDS) as answer:
        try:
            return answer.read(_LARGEST_CHECKSUMS_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(f"{url}: {error}") from error


def _fetch(url: str, target: Path) -> str:
    """Write a file and return its SHA-256 digest."""
    digest = hashlib.sha256()
    written = 0
    with _opened(url, seconds=_STALL_SECONDS) as answer, target.open("wb") as into:
        try:
            while chunk := answer.read(_CHUNK_BYTES):
                written += len(chunk)
                if written > _LARGEST_BYTES:
                    raise DownloadError(f"{url} is larger than {_LARGEST_BYTES >> 20} MiB")
                digest.update(chunk)
                into.write(chunk)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(f"{url}: {error}") from error
    return digest.hexdigest()


def _opened(url: str, *, seconds: float) -> IO[bytes]:
    try:
        return urllib.request.urlopen(url, timeout=seconds)  # noqa: S310 - https, or the origin set
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError
        raise DownloadError(f"{url}: {error}") from error
