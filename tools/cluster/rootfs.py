"""A small Debian root filesystem with Python 3.11, as one tar file, made once and kept.

Debian's own mirror configuration of debootstrap is used; nothing is asked of an image registry.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.cluster.cache import cache_dir
from tools.cluster.context import scratch_folder
from tools.cluster.model import ClusterError
from tools.cluster.progress import Progress

_SUITE = "bookworm"  # its python3 is 3.11, the version of this repository's venv
_PACKAGES = ("python3",)

# documentation, translations, package lists and Perl: 160 of 260 MB that no pod reads
_LEFT_OUT = (
    "./dev/*",
    "./proc/*",
    "./sys/*",
    "./var/cache/*",
    "./var/log/*",
    "./var/lib/apt/lists/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/info/*",
    "./usr/share/locale/*",
    "./usr/share/i18n/*",
    "./usr/share/zoneinfo/*",
    "./usr/share/bash-completion",
    "./usr/share/perl5",
    "./usr/bin/perl*",
    "./usr/lib/*/perl-base",
    "./usr/lib/*/gconv/*",
)


def ensure_rootfs(*, progress: Progress) -> Path:
    """The tar file, made by debootstrap on the first call (about 50 s, as root).

    Raises:
        ClusterError: debootstrap failed; the message has the end of its output.
    """
    recipe = repr((_SUITE, _PACKAGES, _LEFT_OUT))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    target = cache_dir() / "images" / f"rootfs-{digest}.tar"
    if not target.exists():
        with progress.step(f"base image: Debian {_SUITE} with Python, once, about 50 s"):
            _bootstrap(target)
    return target


def _bootstrap(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        root, staged = Path(scratch) / "root", Path(scratch) / "rootfs.tar"
        debootstrap = shutil.which("debootstrap") or "/usr/sbin/debootstrap"
        included = f"--include={','.join(_PACKAGES)}"
        apart = ("unshare", "--mount", "--propagation=private", "--")  # its mounts end with it
        _run(*apart, debootstrap, "--variant=minbase", included, _SUITE, str(root))
        excluded = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
        same = ["--sort=name", "--mtime=@0", "--numeric-owner"]
        _run("tar", *same, *excluded, "-cf", str(staged), "-C", str(root), ".")
        staged.rename(target)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ClusterError(f"{command[0]} failed:\n{tail}")
