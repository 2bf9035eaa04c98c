"""Build contexts of the images: pinned dependencies in site/, our packages in app/.

Both are content-addressed: a folder is made once for what goes into it, so that an unchanged
layer stays the same layer. Bytecode is compiled in (unchecked, for nothing changes in an image):
a pod's root filesystem is read-only and would compile at every start.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.cluster.cache import cache_dir
from tools.cluster.model import ClusterError

REPOSITORY = Path(__file__).resolve().parents[2]

OPERATOR_PARTS = ("", "_addons", "_api", "_cli", "_console", "_scheduler", "_simulator")
TRAINER_PARTS = ("agent", "client", "contract", "planner", "trainer")
IMAGES: dict[str, tuple[str, ...]] = {
    "operator": (
        *(f"operator/drumline{part}" for part in OPERATOR_PARTS),
        *(f"trainer/drumline_{part}" for part in TRAINER_PARTS),
    ),
    "trainer": tuple(f"trainer/drumline_{part}" for part in TRAINER_PARTS),
}
"""Image -> the packages of this repository in it."""

BUNDLED = ("trainer/drumline_agent", "trainer/drumline_contract")
"""The packages that the agent needs in a pod of somebody else's image."""

REHEARSAL = ("tests/rehearsal/stage", "tests/gloo/mutants")
"""Packages that the rehearsal image adds to the trainer's."""
HOSTILE = ("tests/rehearsal/hostile",)
"""The package that the hostile image adds to the trainer's."""

_EXTRAS = {"operator": ("operator",), "trainer": ("trainer", "trainer-more")}
"""Of pyproject.toml, by image: whatever a configuration of a run asks for is there."""
# reads kubeconfig files on workstations; a pod has its service account, and 75 MB less
_NOT_IN_A_POD = {"operator": {"kubernetes"}, "trainer": set[str]()}


@contextmanager
def image_cache() -> Iterator[Path]:
    """The folder of everything images are made of, for one maker at a time on this machine."""
    folder = cache_dir() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        shutil.rmtree(scratch_folder())  # nobody else is at work: a killed maker left it
        yield folder
    finally:
        os.close(lock)


def scratch_folder() -> Path:
    """Where the maker puts things together before it renames them to their place."""
    folder = cache_dir() / "images" / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_context(image: str, target: Path) -> None:
    """Write the whole build context of an image to a new folder, for a build elsewhere."""
    target.mkdir(parents=True)
    with image_cache():
        shutil.copytree(ensure_site(image), target / "site")
        shutil.copytree(ensure_app(image), target / "app")
        if image == "operator":
            shutil.copytree(ensure_bundle(), target / "bundle")


def ensure_site(image: str, *, machine: str | None = None) -> Path:
    """The folder with the image's dependencies as requirements.lock pins them.

    Args:
        image: of IMAGES.
        machine: `x86_64` or `aarch64`: wheels for that one on Debian 12; None: for this one.

    Raises:
        ClusterError: uv is missing, or could not install them.
    """
    pins = pinned(image, machine=machine)
    platform = None if machine is None else f"{machine}-manylinux_2_36"
    content = f"{image}\n{pins}" + (f"\n{platform}, without commands" if platform else "")
    return made_once("site", content, lambda folder: _install(pins, folder, platform=platform))


def ensure_app(image: str) -> Path:
    """The folder with this repository's packages, compiled."""
    sources = [REPOSITORY / package for package in IMAGES[image]]

    def copy(folder: Path) -> None:
        for source in sources:
            unwanted = shutil.ignore_patterns("__pycache__", ".ruff_cache")
            shutil.copytree(source, folder / source.name, ignore=unwanted)
        compile_python(folder, seen_as="/opt/drumline")

    return made_once(
        "app", _fingerprint(file for source in sources for file in _sources(source)), copy
    )


def ensure_bundle(root: Path | None = None) -> Path:
    """The folder with the agent and a Python of its own, for pods with an image of the user's.

    Args:
        root: the file system whose Python is taken, named by its content; None: this program's.

    Raises:
        ClusterError: patchelf is missing, or this Python cannot be taken along.
    """
    program, client = REPOSITORY / "docker/bundle.py", REPOSITORY / "trainer/drumline_client"
    packages = [REPOSITORY / package for package in BUNDLED]

    def make(folder: Path) -> None:
        command = [sys.executable, str(program), str(folder), *map(str, packages)]
        command += ["--client", str(client)]
        command += [] if root is None else [f"--root={root}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"the agent's bundle: {done.stderr.strip()}")

    files = [file for folder in (*packages, client) for file in _sources(folder)]
    python = sys.version if root is None else root.name
    return made_once("bundle", f"{python}\n{_fingerprint([*files, program])}", make)


def ensure_rehearsal() -> Path:
    """The folder with the modules that play faults and mistakes in the trainer's place."""
    return _packages("rehearsal", REHEARSAL)


def ensure_hostile() -> Path:
    """The folder with the programs of a tenant who means harm."""
    return _packages("hostile", HOSTILE)


def _packages(image: str, packages: Iterable[str]) -> Path:
    sources = [REPOSITORY / package for package in packages]

    def copy(folder: Path) -> None:
        for source in sources:
            unwanted = shutil.ignore_patterns("__pycache__", ".ruff_cache")
            shutil.copytree(source, folder / source.name, ignore=unwanted)
        compile_python(folder, seen_as=f"/opt/{image}")

    content = _fingerprint(file for source in sources for file in _sources(source))
    return made_once(image, content, copy)


def _fingerprint(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(REPOSITORY)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def pinned(image: str, *, machine: str | None = None) -> str:
    """The entries of requirements.lock that the image needs: its extras and all they require."""
    environment = {} if machine is None else {"platform_machine": machine}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    groups = (project["optional-dependencies"][extra] for extra in _EXTRAS[image])
    roots = [Requirement(each) for each in chain(project["dependencies"], *groups)]
    names = _closure(roots, without=_NOT_IN_A_POD[image], environment=environment)
    kept = _locked((REPOSITORY / "requirements.lock").read_text(), environment)
    missing = sorted(names - kept.keys())
    if missing:
        raise ClusterError(f"requirements.lock has no {', '.join(missing)}: lock again")
    return "\n".join(kept[name] for name in sorted(names)) + "\n"


def _locked(text: str, environment: dict[str, str]) -> dict[str, str]:
    """Entries by name; of a package with a version for each of several Pythons, ours."""
    kept: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        if not entry.startswith("#"):
            pin = Requirement(entry.partition(" \\\n")[0])
            if pin.marker is None or pin.marker.evaluate(environment):
                kept[str(canonicalize_name(pin.name))] = entry
    return kept


def _closure(
    roots: list[Requirement], *, without: set[str], environment: dict[str, str]
) -> set[str]:
    names: set[str] = set()
    todo = [(root, extra) for root in roots for extra in ("", *root.extras)]
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        applies = marker is None or marker.evaluate({**environment, "extra": extra})
        if name in without or not applies or (name in names and not requirement.extras):
            continue
        names.add(name)
        needs = [Requirement(each) for each in importlib.metadata.requires(name) or ()]
        todo += [(need, each) for need in needs for each in ("", *requirement.extras)]
    return names


def _install(pins: str, folder: Path, *, platform: str | None) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise ClusterError("the command `uv` is missing: it installs the images' packages")
    if sys.version_info[:2] != (3, 11):
        raise ClusterError("images are made with Python 3.11, the version of their base image")
    lock = folder / "requirements.txt"
    lock.write_text(pins)
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--python", sys.executable, "--target", str(folder), "-r", str(lock)]
    command += [] if platform is None else [f"--python-platform={platform}", "--only-binary=:all:"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"uv pip install: {done.stderr.strip()}")
    lock.unlink()
    shutil.rmtree(folder / "bin", ignore_errors=True)  # commands of this machine's interpreter
    for record in folder.glob("*.dist-info/RECORD"):
        kept = [line for line in record.read_text().splitlines() if not line.startswith("bin/")]
        record.unlink()  # it may be a link to uv's cache
        record.write_text("\n".join([*kept, ""]))
    compile_python(folder, seen_as="/opt/site-packages")


def compile_python(folder: Path, *, seen_as: str) -> None:
    """Compile every module below a folder, which pods see at another place."""
    options = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    paths = ["-s", str(folder), "-p", seen_as]  # what a traceback shows
    compiler = [sys.executable, "-m", "compileall", *options, *paths, str(folder)]
    subprocess.run(compiler, check=False, stdout=subprocess.DEVNULL)  # templates may not compile


def _sources(package: Path) -> list[Path]:
    return [
        each
        for each in package.rglob("*")
        if each.is_file() and not {"__pycache__", ".ruff_cache"} & set(each.parts)
    ]


def made_once(kind: str, content: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills for this content, where it was not filled yet."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    target = cache_dir() / "images" / f"{kind}-{digest}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as scratch:
            staged = Path(scratch) / "made"
            staged.mkdir()
            make(staged)
            staged.rename(target)
    return target
