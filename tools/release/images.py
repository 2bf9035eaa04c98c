"""The images for each architecture, from the Dockerfiles, by nobody's daemon and without root.

The Dockerfiles copy folders, name packages of Debian and set what a container starts with; nothing
else in them is executed. So this reads them itself: the base is Debian's packages (debian.py), each
COPY is a layer, and the image for arm64 is made on amd64 without emulation.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cluster.context import (
    IMAGES,
    compile_python,
    ensure_app,
    ensure_bundle,
    ensure_site,
    image_cache,
    made_once,
)
from tools.release import debian
from tools.release.oci import CONFIG, INDEX, Layer, Layout, manifest, plain_entry
from tools.release.source import ROOT, Source

STANDARD_LIBRARY = f"usr/lib/{debian.PYTHON}"
_PACKAGES = "DEBIAN_PACKAGES"
_INSTALL = (
    f'if [ -n "${_PACKAGES}" ]; then apt-get update && apt-get install --yes'
    f" --no-install-recommends ${_PACKAGES} && rm -rf /var/lib/apt/lists/*; fi"
)
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RecipeError(Exception):
    """A Dockerfile says something that cannot be done without executing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A Dockerfile, read.

    Attributes:
        copies: folder of the build context -> where it is in the image, in order.
        packages: of Debian, beside those of the base.
        start: Env, User, Entrypoint and Cmd as an image's configuration names them.
    """

    copies: Mapping[str, str]
    packages: Sequence[str]
    start: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """An image for one architecture.

    Attributes:
        site: the folder of its Python packages.
    """

    architecture: str
    digest: str
    packages: Sequence[debian.Package]
    site: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image for all its architectures; `digest` is its index's."""

    name: str
    digest: str
    variants: Sequence[Variant]


def read_recipe(dockerfile: Path) -> Recipe:
    """What a Dockerfile of this repository says after its base.

    Raises:
        RecipeError: an instruction is none of COPY, ENV, USER, ENTRYPOINT and CMD, nor installs
            what the argument DEBIAN_PACKAGES names.
    """
    joined = re.sub(r"\\\n\s*", "", dockerfile.read_text())
    copies = dict[str, str]()
    packages: list[str] = []
    start: dict[str, Any] = {"Env": [_PATH]}
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        match word:
            case "ARG" if rest.startswith(f"{_PACKAGES}="):
                packages += shlex.split(rest.partition("=")[2])[0].split()
            case "" | "#" | "ARG" | "FROM":
                pass
            case "RUN" if rest == _INSTALL and packages:
                pass
            case "COPY":
                source, target = rest.split()
                copies[source] = target.lstrip("/")
            case "ENV":
                start["Env"] += shlex.split(rest)
            case "USER":
                start["User"] = rest
            case "ENTRYPOINT" | "CMD":
                start[word.capitalize()] = json.loads(rest)
            case _:
                raise RecipeError(f"{dockerfile.name}: {word} is executed, or not known here")
    return Recipe(copies=copies, packages=packages, start=start)


def write_image(folder: Path, name: str, *, architectures: Sequence[str], source: Source) -> Image:
    """Write an image as a layout, one index over its architectures."""
    layout = Layout(folder)
    recipe = read_recipe(ROOT / "docker" / f"{name}.Dockerfile")
    variants, manifests = list[Variant](), list[dict[str, Any]]()
    for architecture in architectures:
        variant, descriptor = _write_variant(layout, name, recipe, architecture, source=source)
        variants.append(variant)
        manifests.append({**descriptor, "platform": _platform(architecture)})
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": manifests,
        "annotations": _annotations(name, source),
    }
    listed = layout.add_json(index, media_type=INDEX)
    layout.list(listed, reference=source.version)
    layout.finish()
    return Image(name=name, digest=listed["digest"], variants=variants)


def _write_variant(
    layout: Layout, name: str, recipe: Recipe, architecture: str, *, source: Source
) -> tuple[Variant, dict[str, Any]]:
    packages = debian.fetch(architecture, more=recipe.packages)
    with image_cache():  # others on this machine make images, too: gigabytes are read without it
        folders = _folders(name, packages, architecture=architecture)
    layers = {
        "Debian packages": layout.add_layer(lambda tar: debian.write_files(packages, tar)),
        "bytecode of Python": layout.add_layer(
            lambda tar: _write_bytecode(folders["root"] / STANDARD_LIBRARY, tar)
        ),
    }
    for copied, target in recipe.copies.items():
        layers[copied] = layout.add_layer(
            lambda tar, folder=folders[copied], at=target: write_folder(folder, tar, at=at)
        )
    config = _config(recipe, layers, architecture=architecture, name=name, source=source)
    described = manifest(
        layout.add_json(config, media_type=CONFIG),
        [layer.descriptor for layer in layers.values()],
        annotations=_annotations(name, source),
    )
    descriptor = layout.add_json(described, media_type=described["mediaType"])
    variant = Variant(
        architecture=architecture,
        digest=descriptor["digest"],
        packages=packages,
        site=folders["site"],
    )
    return variant, descriptor


def _folders(
    name: str, packages: Sequence[debian.Package], *, architecture: str
) -> dict[str, Path]:
    """The build context, and the root file system of the base."""
    machine = debian.ARCHITECTURES[architecture]
    root = ensure_root(packages)
    folders = {"root": root, "site": ensure_site(name, machine=machine), "app": ensure_app(name)}
    return {**folders, "bundle": ensure_bundle(root)} if name == "operator" else folders


def ensure_root(packages: Sequence[debian.Package]) -> Path:
    """The packages unpacked, with the bytecode of their Python."""

    def unpack(folder: Path) -> None:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            debian.write_files(packages, tar)
        content.seek(0)
        with tarfile.open(fileobj=content) as tar:
            tar.extractall(folder, filter="tar")
        compile_python(folder / STANDARD_LIBRARY, seen_as=f"/{STANDARD_LIBRARY}")

    return made_once("root", " ".join(package.sha256 for package in packages), unpack)


def write_folder(folder: Path, tar: tarfile.TarFile, *, at: str) -> None:
    """Write a folder into a layer, the same for the same files."""
    parts = at.split("/")
    for depth in range(len(parts)):
        _write_directory("/".join(parts[: depth + 1]), tar)
    for path in sorted(folder.rglob("*")):
        _write_path(path, tar, name=f"{at}/{path.relative_to(folder)}")


def _write_bytecode(library: Path, tar: tarfile.TarFile) -> None:
    for path in sorted(library.rglob("__pycache__/*.pyc")):
        _write_path(path, tar, name=f"{STANDARD_LIBRARY}/{path.relative_to(library)}")


def _write_directory(name: str, tar: tarfile.TarFile) -> None:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE
    tar.addfile(plain_entry(entry))


def _write_path(path: Path, tar: tarfile.TarFile, *, name: str) -> None:
    if path.is_dir() and not path.is_symlink():
        _write_directory(name, tar)
        return
    entry = tar.gettarinfo(path, name)
    if entry.islnk():  # a hard link of a cache is a file of its own here
        entry.type, entry.size = tarfile.REGTYPE, path.stat().st_size
    entry = plain_entry(entry)
    if entry.isfile():
        with path.open("rb") as file:
            tar.addfile(entry, file)
    else:
        tar.addfile(entry)


def _config(
    recipe: Recipe, layers: Mapping[str, Layer], *, architecture: str, name: str, source: Source
) -> dict[str, Any]:
    return {
        "created": source.time,
        **_platform(architecture),
        "config": {**recipe.start, "Labels": _annotations(name, source)},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers.values()]},
        "history": [{"created": source.time, "created_by": what} for what in layers],
    }


def _platform(architecture: str) -> dict[str, str]:
    return {"architecture": architecture, "os": "linux"}


def _annotations(name: str, source: Source) -> dict[str, str]:
    packages = ", ".join(Path(package).name for package in IMAGES[name])
    return {
        "org.opencontainers.image.created": source.time,
        "org.opencontainers.image.description": f"Drumline's {name}: {packages}",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.title": f"drumline/{name}",
        "org.opencontainers.image.version": source.version,
    }
