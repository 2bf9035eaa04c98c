"""The base of the released images: Debian packages unpacked, and nothing of them executed.

So the image for another architecture is made exactly as the one for this machine's. Packages are
resolved and fetched by apt, which checks Debian's signatures, from the sources that this machine
has configured for Debian; security updates are among them.

What maintainer scripts would do and an image of Python needs is written here: the accounts, the
order in which names are looked up, the bundle of certificates. There is no dpkg inside: each
package's control file is in /var/lib/dpkg/status.d, where scanners look for it.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from tools.cluster.cache import cache_dir
from tools.cluster.model import ClusterError
from tools.release.oci import plain_entry

SUITE, PYTHON = "bookworm", "python3.11"
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's and OCI's name -> the machine's, as Python and uv say."""

_WANTED = (
    *("python3", "libstdc++6", "base-files", "base-passwd", "libc-bin", "ca-certificates"),
    "dash",  # sh
)
_FOR_SCRIPTS_ALONE = {
    *("debconf", "dpkg", "libdebconfclient0", "openssl", "perl-base", "tar", "mawk"),
    *("debianutils", "libacl1", "libpcre2-8-0", "libselinux1", "libzstd1", "libmd0"),
}
"""What other packages depend on for their maintainer scripts, and what only these depend on."""
_COMPILER = "g++"
_BESIDE_COMPILER = ("libpython3.11-dev", "libzstd1", "openssl")
"""Python's headers; what is left out otherwise: a library of its own, and with the program openssl
torch tells compiled headers apart."""
_LEFT_OUT = re.compile(
    r"usr/share/(man|info|locale|lintian|bug|python3/runtime\.d|doc/[^/]+/(?!copyright$))|usr/lib/.*/gconv/."
    r"|usr/lib/.*/libpython[^/]*\.a$"
)
_MERGED = ("bin", "sbin", "lib", "lib64")
"""Folders that are links into /usr, whatever older packages say."""
_SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Debian package, as its file says."""

    name: str
    version: str
    architecture: str
    control: str
    file: Path
    sha256: str


def fetch(architecture: str, *, more: Sequence[str] = ()) -> list[Package]:
    """The packages of an image, newest versions, in the order of their names.

    Args:
        architecture: of ARCHITECTURES.
        more: packages beside those of a base with Python.

    Raises:
        ClusterError: apt failed, or this machine names no source of Debian 12's packages.
    """
    folder = cache_dir() / "release" / architecture
    for part in ("lists/partial", "archives/partial", "nothing/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text("")  # nothing is installed
    _apt(folder, architecture, "update")
    install = ("install", "--yes", "--no-install-recommends")
    # it lists what it would fetch: all, where nothing is
    beside = ("-o", f"Dir::Cache::archives={folder / 'nothing'}")
    beside_compiler = _BESIDE_COMPILER if _COMPILER in more else ()
    wanted = (*_WANTED, *more, *beside_compiler)
    listing = _apt(folder, architecture, *beside, *install, "--print-uris", *wanted)
    files = re.findall(r"^'\S+' (\S+\.deb) ", listing, flags=re.MULTILINE)
    _apt(folder, architecture, *install, "--download-only", *wanted)
    packages = [read_package(folder / "archives" / file) for file in files]
    if not any(package.name == PYTHON for package in packages):
        raise ClusterError(f"no {PYTHON} here: images are made of packages of Debian {SUITE}")
    return sorted(
        (
            package
            for package in packages
            if package.name not in _FOR_SCRIPTS_ALONE.difference(beside_compiler)
        ),
        key=lambda package: package.name,
    )


def write_files(packages: Sequence[Package], tar: tarfile.TarFile) -> None:
    """Write all files of the packages, those that scripts would make, and the control files."""
    tree = _Tree(tar)
    for name in _MERGED:
        tree.link(name, to=f"usr/{name}")
    contents = dict[str, bytes]()
    for package in packages:
        for entry, content in _members(package.file):
            path = _place(entry.name)
            if path not in {"", *_MERGED} and not _LEFT_OUT.match(path):
                tree.member(entry, content, at=path)
            if _is_read(path):
                contents[path] = content
    for name, content in _made_by_scripts(contents, packages).items():
        tree.file(name, content)
    tree.link("usr/lib/ssl/cert.pem", to=f"/{_CERTIFICATES}")


@dataclass(frozen=True, slots=True)
class _Tree:
    """A tar file in which every path is written once, after the folders that it is in."""

    _tar: tarfile.TarFile
    _written: set[str] = field(default_factory=set[str])

    def member(self, entry: tarfile.TarInfo, content: bytes, *, at: str) -> None:
        """A member of another tar file, as it is there but for its place and time."""
        entry.name = at
        if entry.islnk():
            entry.linkname = _place(entry.linkname)
        entry.mtime, entry.uname, entry.gname, entry.pax_headers = 0, "", "", {}
        self._add(entry, content)

    def file(self, name: str, content: bytes) -> None:
        entry = plain_entry(tarfile.TarInfo(name))
        entry.size = len(content)
        self._add(entry, content)

    def link(self, name: str, *, to: str) -> None:
        entry = plain_entry(tarfile.TarInfo(name))
        entry.type, entry.linkname = tarfile.SYMTYPE, to
        self._add(entry)

    def _add(self, entry: tarfile.TarInfo, content: bytes = b"") -> None:
        if entry.name in self._written:
            return
        parent = entry.name.rpartition("/")[0]
        if parent:
            folder = tarfile.TarInfo(parent)
            folder.type = tarfile.DIRTYPE
            self._add(plain_entry(folder))
        self._tar.addfile(entry, io.BytesIO(content) if entry.isfile() else None)
        self._written.add(entry.name)


_ACCOUNTS = {"etc/passwd": "passwd.master", "etc/group": "group.master"}
_NAMES = "usr/share/libc-bin/nsswitch.conf"
_ROOTS = "usr/share/ca-certificates/mozilla/"
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


def _is_read(path: str) -> bool:
    return path == _NAMES or path.startswith((_ROOTS, "usr/share/base-passwd/"))


def _made_by_scripts(contents: dict[str, bytes], packages: Sequence[Package]) -> dict[str, bytes]:
    made = {
        target: contents[f"usr/share/base-passwd/{source}"] for target, source in _ACCOUNTS.items()
    }
    # without it the C library would ask DNS before /etc/hosts
    made["etc/nsswitch.conf"] = contents[_NAMES]
    roots = [contents[path] for path in sorted(contents) if path.startswith(_ROOTS)]
    made[_CERTIFICATES] = b"".join(roots)
    for package in packages:
        made[f"var/lib/dpkg/status.d/{package.name}"] = package.control.encode()
    return made


def _place(name: str) -> str:
    """Where a file of a package is with /usr merged: `./lib/x.so` -> `usr/lib/x.so`."""
    path = posixpath.normpath(name)
    if path == ".":
        return ""
    return f"usr/{path}" if path.partition("/")[0] in _MERGED and "/" in path else path


def _members(package: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    unpacked = _run("dpkg-deb", "--fsys-tarfile", str(package))
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() else None
            yield entry, file.read() if file is not None else b""


def read_package(file: Path) -> Package:
    """The package that a file is."""
    control = _run("dpkg-deb", "--field", str(file)).decode()
    fields = HeaderParser().parsestr(control)
    return Package(
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields["Architecture"],
        control=control,
        file=file,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )


def _apt(folder: Path, architecture: str, *arguments: str) -> str:
    source = next((path for path in _SOURCES if Path(path).exists()), None)
    if source is None:
        raise ClusterError("no sources of Debian packages are configured on this machine")
    options = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder,
        "Dir::Cache::archives": folder / "archives",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",  # the folder is this user's
    }
    given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return _run("apt-get", "-q", *given, *arguments).decode()


def _run(*command: str) -> bytes:
    if shutil.which(command[0]) is None:
        raise ClusterError(f"the command `{command[0]}` is missing: releases are made on Debian")
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{command[0]}: {done.stderr.decode(errors='replace')[-800:]}")
    return done.stdout
