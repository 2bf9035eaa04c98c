"""The Debian packages that real nodes need: which are missing, and their installation as root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.cluster.cache import cache_dir
from tools.cluster.model import ClusterError
from tools.cluster.nodes import CNI_FOLDERS
from tools.cluster.progress import Progress

_COMMANDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
LOCK_SECONDS = 600
"""Of dpkg itself: another program may be installing packages."""


def absent() -> list[str]:
    """The packages that are not installed, by what they bring."""
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"
    packages = {
        package
        for command, package in _COMMANDS.items()
        if shutil.which(command, path=path) is None
    }
    if not any((folder / "bridge").exists() for folder in CNI_FOLDERS):
        packages.add("containernetworking-plugins")
    return sorted(packages)


def missing_packages() -> str | None:
    """A sentence when packages are missing and this machine has no way to install them."""
    packages = absent()
    if packages and shutil.which("apt-get") is None:
        return f"missing, and there is no apt-get to install them: {', '.join(packages)}"
    return None


def ensure_packages(*, progress: Progress) -> None:
    """Install what is absent of what nodes need (as root, on Debian and its descendants).

    Raises:
        ClusterError: apt-get failed; the message has its last words.
    """
    _ensure(absent, progress=progress)


def ensure_command(command: str, *, package: str, progress: Progress) -> None:
    """Install the package that brings a command, where there is none of this name.

    Raises:
        ClusterError: apt-get failed; the message has its last words.
    """
    _ensure(lambda: [] if shutil.which(command) else [package], progress=progress)


def _ensure(wanted: Callable[[], Sequence[str]], *, progress: Progress) -> None:
    if not wanted():
        return
    cache_dir().mkdir(parents=True, exist_ok=True)
    # two programs may start at the same time: the second one finds everything installed
    with (cache_dir() / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(wanted(), progress=progress)
    still = wanted()
    if still:
        raise ClusterError(f"installed, but still not found: {', '.join(still)}")


def _install(packages: Sequence[str], *, progress: Progress) -> None:
    if not packages:
        return
    command = ("install", "--yes", "--no-install-recommends", *packages)
    with progress.step(f"installing {', '.join(packages)}"):
        apt(*command)


def apt(command: str, *arguments: str, folder: Path | None = None) -> None:
    """Run a command of apt-get, after `update` where the lists of packages lack or are too old.

    Args:
        command: of apt-get.
        arguments: of the command.
        folder: where it is run; None: here.

    Raises:
        ClusterError: it failed; the message has its last words.
    """
    if not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        _apt("update", folder=None)
    try:
        _apt(command, *arguments, folder=folder)
    except ClusterError:  # the lists may be older than what the mirror still has
        _apt("update", folder=None)
        _apt(command, *arguments, folder=folder)


def _apt(*arguments: str, folder: Path | None) -> None:
    done = subprocess.run(
        ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"apt-get {arguments[0]}: {done.stderr.strip()[-500:]}")
