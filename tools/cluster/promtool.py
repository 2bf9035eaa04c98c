"""Prometheus and promtool, its checker of rules: from PATH, or unpacked from Debian's package."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.cluster.cache import cache_dir
from tools.cluster.model import ClusterError
from tools.cluster.packages import apt

_PROGRAMS: Final = ("promtool", "prometheus")


def ensure_promtool() -> Path | None:
    """The program; None where it is neither installed nor to be had from Debian."""
    return _ensure("promtool")


def ensure_prometheus() -> Path | None:
    """The server; None where it is neither installed nor to be had from Debian."""
    return _ensure("prometheus")


def _ensure(program: str) -> Path | None:
    if installed := shutil.which(program):
        return Path(installed)
    place = cache_dir() / "promtool"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / program).exists():
            try:
                _unpack(place)
            except ClusterError as error:
                print(error, file=sys.stderr)
                return None
    return place / program


def _unpack(place: Path) -> None:
    """The package is unpacked, not installed: it would start a server."""
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        apt("download", "prometheus", folder=Path(scratch))
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, scratch], check=True, capture_output=True)
        for program in _PROGRAMS:
            (Path(scratch) / "usr/bin" / program).replace(place / program)
