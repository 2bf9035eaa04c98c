"""promtool, Prometheus' own checker of rules: from PATH, or unpacked from Debian's package."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.binaries import cache_dir
from tests.cluster.packages import apt


def ensure_promtool() -> Path | None:
    """The program; None where it is neither installed nor to be had from Debian."""
    if installed := shutil.which("promtool"):
        return Path(installed)
    place = cache_dir() / "promtool" / "promtool"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _unpack(place)
    return place


def _unpack(place: Path) -> None:
    """The package is unpacked, not installed: it would start a server."""
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        apt("download", "prometheus", folder=Path(scratch))
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, scratch], check=True, capture_output=True)
        (Path(scratch) / "usr/bin/promtool").rename(place)
