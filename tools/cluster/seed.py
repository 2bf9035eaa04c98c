"""A containerd store with all images already unpacked, from which every node starts.

Importing 150 MB into each of three containerds takes longer than all the rest of a start. So the
archive is imported once, into a containerd that runs for nothing else; nodes then begin with hard
links to its blobs and unpacked layers. No node writes to those: an overlay copies a file up before
it changes it, and a blob is only ever removed. The two databases are real copies.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools.cluster.context import image_cache, scratch_folder
from tools.cluster.model import ClusterError
from tools.cluster.progress import Progress

NO_COLLECTOR = """
[plugins."io.containerd.gc.v1.scheduler"]
startup_delay = "1h"
mutation_threshold = 0
"""
"""No garbage collection on containerd's own account. An import moves a tag from the old image to
the new one before it has claimed the layers that both share; a collection in between takes them
away, and the import ends with `parent snapshot ... does not exist`."""


def ensure_seed(archive: Path, *, progress: Progress) -> Path:
    """The store for an archive, made on the first call."""
    seed = archive.with_suffix(".seed")
    with image_cache():
        if not seed.exists():
            with progress.step("unpacking images once for all nodes"):
                _import(archive, seed)
        seed.touch()
    return seed


def plant(seed: Path, root: Path) -> None:
    """Make a node's containerd root from the store: about 10,000 hard links, 0.2 s."""
    root.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-al", str(seed), str(root)], check=True)
    for database in root.rglob("*.db"):
        own = database.with_suffix(".new")
        shutil.copyfile(database, own)
        own.rename(database)


def _import(archive: Path, seed: Path) -> None:
    # the socket's path has to be short, the store on the disk where the nodes will be
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch,
        tempfile.TemporaryDirectory(prefix="drumline-") as state,
    ):
        older = sorted(seed.parent.glob("*.seed"), key=lambda path: path.stat().st_mtime)
        root, socket = Path(scratch) / "containerd", f"{state}/containerd.sock"
        config = Path(state) / "config.toml"
        config.write_text(
            f'version = 2\nroot = "{root}"\nstate = "{state}/run"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
            f'[grpc]\naddress = "{socket}"\n{NO_COLLECTOR}'
        )
        if older:  # most layers are the same: only new ones are unpacked
            plant(older[-1], root)
        # its mounts end with it, and it ends with this program
        apart = ["unshare", "--mount", "--propagation=private", "--"]
        apart += ["setpriv", "--pdeathsig=KILL", "--", "containerd", "--config", str(config)]
        with subprocess.Popen(apart, stderr=subprocess.DEVNULL) as containerd:
            try:
                for _ in _until_exists(Path(socket), containerd):
                    time.sleep(0.05)
                _ctr(socket, "images", "import", str(archive))
                _sweep(socket)
            finally:
                containerd.terminate()
        root.rename(seed)


def _sweep(socket: str) -> None:
    """Collect what no image needs any more: deleting a lease synchronously does that."""
    _ctr(socket, "leases", "create", "--id=sweep")
    _ctr(socket, "leases", "delete", "--sync", "sweep")


def _until_exists(path: Path, process: subprocess.Popen[bytes]) -> Iterator[None]:
    while not path.exists():
        if process.poll() is not None:
            raise ClusterError(f"containerd ended with {process.returncode} while unpacking images")
        yield


def _ctr(socket: str, *arguments: str) -> None:
    command = ["ctr", f"--address={socket}", "--namespace=k8s.io", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
