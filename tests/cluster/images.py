"""The images a throwaway cluster runs, built by buildah and loaded into every node.

One archive holds all of them, so that their common base is stored and read once. It is kept under
a digest of what went in: an unchanged repository builds nothing. buildah's own storage lives in
this cache too; nothing is left in the machine's container storage.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.binaries import cache_dir
from tests.cluster.context import REPOSITORY, ensure_app, ensure_site, scratch_folder
from tests.cluster.model import ClusterError
from tests.cluster.nodes import SANDBOX_IMAGE, import_image
from tests.cluster.rootfs import ensure_rootfs
from tests.cluster.seed import ensure_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cluster.model import NodeInfo
    from tests.cluster.progress import Progress

OPERATOR_IMAGE = "drumline/operator:dev"
TRAINER_IMAGE = "drumline/trainer:dev"

_KEPT = 6  # of each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """All images twice: as an archive for a node that runs, as a store for one that starts."""

    archive: Path
    seed: Path


def ensure_images(*, progress: Progress) -> Images:
    """The images for the repository as it is now, built when something changed.

    Raises:
        ClusterError: a tool is missing, or a build failed with the end of its output.
    """
    with _alone():
        rootfs = ensure_rootfs(progress=progress)
        inputs: dict[str, dict[str, Path]] = {
            "base": {"rootfs.tar": rootfs},
            "operator": {"site": ensure_site("operator"), "app": ensure_app("operator")},
            "trainer": {"app": ensure_app("trainer")},
        }
        archive = cache_dir() / "images" / f"archive-{_digest(inputs)}.tar"
        if not archive.exists():
            with progress.step("images: base, operator, trainer"):
                _build(inputs, archive)
        seed = ensure_seed(archive, progress=progress)
        archive.touch()
        seed.touch()
        _forget_old(archive.parent)
    return Images(archive=archive, seed=seed)


def load_images(
    archive: Path, nodes: Sequence[NodeInfo], *, folder: Path, progress: Progress
) -> None:
    """Load an archive into every node's containerd, all nodes at once."""
    with progress.step(f"images into {len(nodes)} nodes"), ThreadPoolExecutor() as pool:
        loads = [pool.submit(import_image, node, archive, folder=folder) for node in nodes]
        for load in loads:
            load.result()


def _build(inputs: dict[str, dict[str, Path]], archive: Path) -> None:
    _buildah("rm", "--all")  # what a killed build left
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        work = Path(scratch)
        for image, parts in inputs.items():
            context = work / image
            context.mkdir()
            for name, source in parts.items():
                _link(source, context / name)
            (context / "site").mkdir(exist_ok=True)  # the trainer's is mounted when it runs
            _build_one(image, context)
            _buildah("push", "--disable-compression", _local(image), f"dir:{work}/{image}.image")
        _buildah("rmi", "--prune")
        staged = work / "archive.tar"
        _pack({image: work / f"{image}.image" for image in inputs}, staged)
        staged.rename(archive)


def _build_one(image: str, context: Path) -> None:
    _buildah(
        *("build", "--isolation=chroot", "--layers", "--timestamp=0", "--pull-never"),
        f"--build-arg=BASE_IMAGE={_local('base')}" if image != "base" else "--format=oci",
        *("--tag", _local(image), "--file", str(_dockerfile(image)), str(context)),
    )


def _pack(images: dict[str, Path], archive: Path) -> None:
    """One archive as `docker save` writes it, in which the images share their layers."""
    entries: list[dict[str, Any]] = []
    blobs: dict[str, Path] = {}
    for image, folder in images.items():
        manifest = json.loads((folder / "manifest.json").read_text())
        config, *layers = (_hash(each) for each in (manifest["config"], *manifest["layers"]))
        entries.append({"Config": config, "RepoTags": [_tag(image)], "Layers": layers})
        blobs |= {name: folder / name for name in (config, *layers)}
    listing = json.dumps(entries).encode()
    with tarfile.open(archive, "w") as tar:
        head = tarfile.TarInfo("manifest.json")
        head.size = len(listing)
        tar.addfile(head, io.BytesIO(listing))
        for name, source in sorted(blobs.items()):
            tar.add(source, arcname=name)


def _hash(descriptor: dict[str, Any]) -> str:
    return descriptor["digest"].removeprefix("sha256:")


def _tag(image: str) -> str:
    return {"base": SANDBOX_IMAGE, "operator": OPERATOR_IMAGE, "trainer": TRAINER_IMAGE}[image]


def _local(image: str) -> str:
    return f"localhost/{_tag(image)}"


def _dockerfile(image: str) -> Path:
    return REPOSITORY / "docker" / f"{image}.Dockerfile"


def _digest(inputs: dict[str, dict[str, Path]]) -> str:
    """Inputs are named by their content, so their names are enough."""
    digest = hashlib.sha256()
    for image, parts in inputs.items():
        digest.update(_dockerfile(image).read_bytes())
        digest.update(repr({name: source.name for name, source in parts.items()}).encode())
    return digest.hexdigest()[:12]


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        target.hardlink_to(source)


def _forget_old(folder: Path) -> None:
    """Keep the archives and folders used last."""
    for pattern in ("archive-*.tar", "archive-*.seed", "app-*"):
        found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        for path in found[:-_KEPT]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _buildah(*arguments: str) -> None:
    if shutil.which("buildah") is None:
        raise ClusterError("the command `buildah` is missing: install the package buildah")
    storage = cache_dir() / "images" / "storage"
    # its mounts end with it, however it ends
    command = ["unshare", "--mount", "--propagation=private", "--"]
    command += ["buildah", f"--root={storage / 'root'}", f"--runroot={storage / 'run'}"]
    command += ["--storage-driver=overlay", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ClusterError(f"buildah {arguments[0]} failed:\n{tail}")


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time on this machine."""
    folder = cache_dir() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        shutil.rmtree(scratch_folder())  # nobody else builds: what is there, a killed build left
        yield
    finally:
        os.close(lock)
