"""Packages that the image lacks: installed in each pod, before its ranks start, into scratch space.

An init container of the job's image runs pip for an environment of its own, with the job's claims
mounted. pip is the image's, a wheel in it (as in the trainer's image), or fetched by its uv. The
environment sees the image's packages, which are not installed again. Ranks find the new ones by
PYTHONPATH, before those of the image. Hashes in the file are checked, as pip does. Ranks that are
started again in place find what is there; a new pod installs anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from drumline_cli.errors import BadInput
from drumline_contract.regular_files import read_regular

Json = dict[str, Any]

MAX_CHARS: Final = 8192
"""Of a variable's value."""
_MOST_BYTES: Final = 1 << 20
_FOLDER: Final = "/requirements"
_VOLUME: Final = "requirements"
_PATH: Final = "PYTHONPATH"
_OTHER_FILES: Final = ("-r", "-c", "-e", "--requirement", "--constraint", "--editable")
INSTALL: Final = """\
import importlib.util, os, pathlib, shutil, subprocess, sys, venv

WHEELS = pathlib.Path("/usr/share/python-wheels")
folder = pathlib.Path(sys.argv[1])
wanted = folder / "requirements.txt"
wanted.write_text(os.environ["REQUIREMENTS"])
venv.create(folder / "env", with_pip=False, symlinks=True)
(packages,) = (folder / "env" / "lib").glob("python*/site-packages")
of_image = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
(packages / "image.pth").write_text("".join(path + "\\n" for path in of_image))
(folder / "packages").symlink_to(packages)

def pip_of_image():
    # pip, else a wheel of Debian's or of ensurepip, else one that uv fetches.
    if importlib.util.find_spec("pip"):
        return {}
    bundled = importlib.util.find_spec("ensurepip")
    folders = [WHEELS, pathlib.Path(bundled.origin).parent / "_bundled"] if bundled else [WHEELS]
    for wheel in (wheel for place in folders for wheel in sorted(place.glob("pip-*.whl"))):
        return {"PYTHONPATH": str(wheel)}
    uv = shutil.which("uv")
    uv = [uv] if uv else [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else []
    own = str(folder / "pip")
    fetch = ["pip", "install", "--quiet", "--no-cache", "--python", sys.executable, "--target", own]
    if uv and subprocess.run([*uv, *fetch, "pip>=22.3"]).returncode == 0:
        return {"PYTHONPATH": own}
    sys.stderr.write("--requirements: the image has no pip, ensurepip or uv that works."
                     " Use an image with one of them, or install the packages in the image.\\n")
    sys.exit(64)

variables = {**os.environ, **pip_of_image()}
pip = [sys.executable, "-m", "pip", "--python", str(folder / "env" / "bin" / "python")]
quiet = ["--no-cache-dir", "--no-input", "--disable-pip-version-check"]
done = subprocess.run([*pip, "install", *quiet, "-r", str(wanted)], env=variables)
sys.exit(done.returncode and 64)
"""
"""Its argument is the folder; needs Python 3.9, and pip 22.3, ensurepip or uv in the image.

The exit code 64 says that another try would fail, too. pip itself tries again where an index does
not answer."""


def with_volume(template: Json, volume: Json, *, mount: Json) -> Json:
    """Return the template with one more volume, and its mount.

    Args:
        template: Pod template of the job.
        volume: the volume.
        mount: mount in the container.
    """
    return {
        **template,
        "volumes": [*template.get("volumes", []), volume],
        "volumeMounts": [*template.get("volumeMounts", []), mount],
    }


def with_init_container(template: Json, container: Json) -> Json:
    """Return the template with one more init container, after those that it has."""
    return {**template, "initContainers": [*template.get("initContainers", []), container]}


def read_requirements(file: Path) -> str:
    """Return the text of a requirements file.

    Raises:
        BadInput: it cannot be read, is too long, or names files that the pod does not have.
    """
    try:
        text = read_regular(file, limit=_MOST_BYTES).decode()
    except OSError as error:
        raise BadInput(f"--requirements {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"--requirements {file}: {error}") from None
    if len(text) > MAX_CHARS:
        raise BadInput(
            f"--requirements {file}: {len(text)} characters exceed the maximum of {MAX_CHARS};"
            " list fewer packages, or build an image"
        )
    for number, line in enumerate(text.splitlines(), start=1):
        # Only the requirements file is in the pod, so other files are missing there.
        if line.strip().startswith((*_OTHER_FILES, ".", "/")):
            raise BadInput(
                f"--requirements {file}, line {number}: {line.strip()!r} names a file, which the"
                " init container does not have; list the packages instead"
            )
    return text


def with_requirements(template: Json, requirements: str, *, env: Sequence[Json]) -> Json:
    """Return the template with what installs them.

    Args:
        template: template of the job.
        requirements: the text.
        env: the job's variables, which pip has too: PIP_INDEX_URL, say.
    """
    mount = {"name": _VOLUME, "mountPath": _FOLDER}
    packages = f"{_FOLDER}/packages"
    # The job may set PYTHONPATH itself. Its folders follow the new packages.
    own = next((each.get("value", "") for each in env if each["name"] == _PATH), "")
    path = {"name": _PATH, "value": f"{packages}:{own}" if own else packages}
    install: Json = {
        "name": "requirements",
        "command": ["python3", "-c", INSTALL, _FOLDER],
        # Kubernetes expands `$(NAME)` in values. Two dollar signs keep the text.
        "env": [{"name": "REQUIREMENTS", "value": requirements.replace("$(", "$$(")}, *env],
        "volumeMounts": [*template.get("volumeMounts", []), mount],
    }
    begun = {**template, "env": [path, *(each for each in env if each["name"] != _PATH)]}
    scratch: Json = {"name": _VOLUME, "emptyDir": {}}
    return with_volume(with_init_container(begun, install), scratch, mount=mount)
