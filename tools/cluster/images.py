"""The images a throwaway cluster runs, built by buildah and loaded into every node.

One archive holds all of them, so that their common base is stored and read once. It is kept under
a digest of what went in: an unchanged repository builds nothing. buildah's own storage lives in
this cache too; nothing is left in the machine's container storage.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.cluster.cache import cache_dir
from tools.cluster.context import (
    REPOSITORY,
    ensure_app,
    ensure_bundle,
    ensure_hostile,
    ensure_rehearsal,
    ensure_site,
    image_cache,
    scratch_folder,
)
from tools.cluster.model import ClusterError, NodeInfo
from tools.cluster.nodes import SANDBOX_IMAGE, has_images, import_images
from tools.cluster.progress import Progress
from tools.cluster.rootfs import ensure_rootfs

OPERATOR_IMAGE = "drumline/operator:dev"
TRAINER_IMAGE = "drumline/trainer:dev"
REHEARSAL_IMAGE = "drumline/rehearsal:dev"
"""The trainer with faults on order, for jobs of tests that name it."""
HOSTILE_IMAGE = "drumline/hostile:dev"
"""An image of a tenant who means harm, likewise."""

_KEPT = 5  # of each kind: one of each image
_BASES = {"operator": "base", "trainer": "base", "rehearsal": "trainer", "hostile": "trainer"}
_TAGS = {
    "base": SANDBOX_IMAGE,
    "operator": OPERATOR_IMAGE,
    "trainer": TRAINER_IMAGE,
    "rehearsal": REHEARSAL_IMAGE,
    "hostile": HOSTILE_IMAGE,
}
_DOCKERFILES = {"rehearsal": "tests/rehearsal", "hostile": "tests/rehearsal/hostile"}
"""Folders of those that are not in docker/."""


def ensure_images(*, progress: Progress) -> Path:
    """The archive of all images for the repository as it is now, built where something changed.

    Raises:
        ClusterError: a tool is missing, or a build failed with the end of its output.
    """
    with image_cache() as folder:
        rootfs = ensure_rootfs(progress=progress)
        inputs: dict[str, dict[str, Path]] = {
            "base": {"rootfs.tar": rootfs},
            "operator": {
                "site": ensure_site("operator"),
                "app": ensure_app("operator"),
                "bundle": ensure_bundle(),
            },
            "trainer": {"app": ensure_app("trainer")},
            "rehearsal": {"rehearsal": ensure_rehearsal()},
            "hostile": {"hostile": ensure_hostile()},
        }
        built = {image: folder / f"image-{_digest(image, inputs)}" for image in inputs}
        together = hashlib.sha256(repr(sorted(each.name for each in built.values())).encode())
        archive = folder / f"archive-{together.hexdigest()[:12]}.tar"
        if not archive.exists():
            changed = _to_build({image for image in inputs if not built[image].exists()})
            with progress.step(f"building images: {', '.join(changed)}"):
                for image in changed:
                    _build(image, inputs[image], built[image])
                _pack(built, archive)
        for used in (archive, *built.values()):
            used.touch()
        _forget_old(folder)
    return archive


def load_images(
    archive: Path, nodes: Sequence[NodeInfo], *, folder: Path, progress: Progress
) -> None:
    """Load an archive into every node that has another, all nodes at once."""
    stale = [node for node in nodes if not has_images(node, archive)]
    with progress.step(f"images into {len(stale)} nodes"), ThreadPoolExecutor() as pool:
        loads = [pool.submit(import_images, node, archive, folder=folder) for node in stale]
        for load in loads:
            load.result()


def _to_build(missing: set[str]) -> list[str]:
    """With each also what it is made from: buildah may hold another version under that tag."""
    wanted = missing | {_BASES[image] for image in missing if _BASES.get(image) == "trainer"}
    return [image for image in _TAGS if image in wanted]


def _build(image: str, parts: dict[str, Path], target: Path) -> None:
    """Build one image from its Dockerfile and write it to a folder: manifest, config, layers."""
    shutil.rmtree(target, ignore_errors=True)
    _buildah("rm", "--all")  # what a killed build left
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
        context, made = Path(scratch) / "context", Path(scratch) / "image"
        context.mkdir()
        for name, source in parts.items():
            _link(source, context / name)
        (context / "site").mkdir(exist_ok=True)  # the trainer's is mounted when it runs
        _buildah(
            *("build", "--isolation=chroot", "--layers", "--timestamp=0", "--pull-never"),
            *([f"--build-arg=BASE_IMAGE={_local(_BASES[image])}"] if image in _BASES else []),
            *(["--build-arg=DEBIAN_PACKAGES="] if image == "trainer" else []),
            *("--tag", _local(image), "--file", str(_dockerfile(image)), str(context)),
        )
        _buildah("push", "--disable-compression", _local(image), f"dir:{made}")
        _buildah("rmi", "--prune")
        made.rename(target)


def _pack(images: dict[str, Path], archive: Path) -> None:
    """One archive as `docker save` writes it, in which the images share their layers."""
    entries: list[dict[str, Any]] = []
    blobs: dict[str, Path] = {}
    for image, folder in images.items():
        manifest = json.loads((folder / "manifest.json").read_text())
        config, *layers = (_hash(each) for each in (manifest["config"], *manifest["layers"]))
        entries.append({"Config": config, "RepoTags": [_TAGS[image]], "Layers": layers})
        blobs |= {name: folder / name for name in (config, *layers)}
    listing = json.dumps(entries).encode()
    staged = scratch_folder() / archive.name
    with tarfile.open(staged, "w") as tar:
        head = tarfile.TarInfo("manifest.json")
        head.size = len(listing)
        tar.addfile(head, io.BytesIO(listing))
        for name, source in sorted(blobs.items()):
            tar.add(source, arcname=name)
    staged.rename(archive)


def _hash(descriptor: dict[str, Any]) -> str:
    return descriptor["digest"].removeprefix("sha256:")


def _local(image: str) -> str:
    return f"localhost/{_TAGS[image]}"


def _dockerfile(image: str) -> Path:
    if image in _DOCKERFILES:
        return REPOSITORY / _DOCKERFILES[image] / "Dockerfile"
    return REPOSITORY / "docker" / f"{image}.Dockerfile"


def _digest(image: str, inputs: dict[str, dict[str, Path]]) -> str:
    """Inputs are named by their content, so their names are enough."""
    digest = hashlib.sha256()
    made_from = _BASES.get(image)
    if made_from is not None:
        digest.update(_digest(made_from, inputs).encode())
    digest.update(_dockerfile(image).read_bytes())
    digest.update(repr({name: source.name for name, source in inputs[image].items()}).encode())
    return digest.hexdigest()[:12]


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        target.hardlink_to(source)


def _forget_old(folder: Path) -> None:
    """Keep the archives and folders used last."""
    for pattern in (
        "archive-*.tar",
        "archive-*.seed",
        "image-*",
        "app-*",
        "bundle-*",
        "rehearsal-*",
        "hostile-*",
    ):
        ordered = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        for path in ordered[:-_KEPT]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _buildah(*arguments: str) -> None:
    if shutil.which("buildah") is None:
        raise ClusterError("the command `buildah` is missing: install the package buildah")
    storage = cache_dir() / "images" / "storage"
    # its mounts end with it, however it ends
    environment = {**os.environ, "CONTAINERS_CONF": str(_containers_conf(storage))}
    command = ["unshare", "--mount", "--propagation=private", "--"]
    command += ["buildah", f"--root={storage / 'root'}", f"--runroot={storage / 'run'}"]
    command += ["--storage-driver=overlay", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise ClusterError(f"buildah {arguments[0]} failed:\n{tail}")


def _containers_conf(storage: Path) -> Path:
    """buildah's configuration: without it, it makes a lock file in /etc/cni."""
    storage.mkdir(exist_ok=True)
    file = storage / "containers.conf"
    file.write_text(f'[network]\nnetwork_config_dir = "{storage / "networks"}"\n')
    return file
