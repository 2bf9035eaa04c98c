"""The trainer's base compiles: Debian's packages alone, with nothing of this machine's compilers.

A pod in small: a root file system that cannot be written, a user without a name and a home, a /tmp
of its own. PyTorch is this machine's, as in the throwaway cluster.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tools.cluster.context import image_cache
from tools.release import debian
from tools.release.images import ensure_root, read_recipe
from tools.release.source import ROOT

TRAINS = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$ROOT,upperdir=/mnt/upper,workdir=/mnt/work" none /mnt/root
cd /mnt/root
mkdir -p opt/site-packages opt/drumline proc dev tmp
mount --bind "$SITE" opt/site-packages
mount --bind "$TRAINER" opt/drumline
mount -t proc none proc
mount -t devtmpfs none dev
mount -t tmpfs -o mode=1777,exec none tmp
mount -o remount,ro .
exec env -i PATH=/usr/bin PYTHONPATH=/opt/drumline:/opt/site-packages PYTHONDONTWRITEBYTECODE=1 \
    DRUMLINE_DEVICE=cpu "$(command -v chroot)" --userspec=65532:65532 . \
    python3 -m drumline_trainer --ranks 1 --set compile=blocks --set steps=2 \
    --set data.sequence_length=16 --set model.hidden_size=16 --set model.ffn_size=32
"""


@pytest.mark.skipif(os.getuid() != 0, reason="a file system of its own needs root")
def test_a_layer_is_compiled_where_there_is_nothing_but_the_image() -> None:
    packages = debian.fetch(
        "amd64", more=read_recipe(ROOT / "docker" / "trainer.Dockerfile").packages
    )
    with image_cache():
        root = ensure_root(packages)
    places = {
        "ROOT": str(root),
        "SITE": sysconfig.get_path("purelib"),
        "TRAINER": str(ROOT / "trainer"),
    }
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "--", "sh", "-c", TRAINS],
        env={"PATH": f"{os.environ['PATH']}:/usr/sbin", **places},
        capture_output=True,
        text=True,
        check=False,
    )
    size = sum(path.lstat().st_size for path in Path(root).rglob("*") if path.is_file())
    print(f"{len(packages)} packages, {size / 1e6:.0f} MB", done.stdout, done.stderr[-4000:])
    assert done.returncode == 0
    assert "graphs compiled in" in done.stdout
