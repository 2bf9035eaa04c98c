"""What the image lacks is installed before the ranks start; the program is run for real."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from drumline_cli.errors import BadInput
from drumline_cli.run.requirements import INSTALL, MAX_CHARS, read_requirements, with_requirements
from tests.texts import missing


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As of an image: an interpreter with pip, in an environment of its own."""
    if find_spec("ensurepip") is None:
        pytest.skip("this Python makes no environment with pip: Debian has that in python3-venv")
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return str(folder / "bin" / "python3")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        info = f"tidy-{version}.dist-info"
        with zipfile.ZipFile(folder / f"tidy-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tidy.py", f"VERSION = {version!r}\n")
            metadata = f"Metadata-Version: 2.1\nName: tidy\nVersion: {version}\n"
            wheel.writestr(f"{info}/METADATA", metadata)
            tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr(f"{info}/WHEEL", tag)
            wheel.writestr(f"{info}/RECORD", "")
    return folder


def install(python: str, folder: Path, requirements: str, wheels: Path) -> str:
    """As the init container does; what it printed."""
    folder.mkdir(exist_ok=True)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = subprocess.run(
        [python, "-c", INSTALL, str(folder)],
        env={**os.environ, **offline, "REQUIREMENTS": requirements},
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def version(python: str, folder: Path) -> str:
    """What a rank of the job imports."""
    program = [python, "-c", "import tidy; print(tidy.VERSION)"]
    path = {**os.environ, "PYTHONPATH": str(folder / "packages")}
    return subprocess.check_output(program, env=path, text=True).strip()


@pytest.mark.extended(keep=1, of="installs")
def test_ranks_import_what_was_installed_and_not_what_the_image_has(
    python: str, wheels: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "requirements"
    assert install(python, folder, "tidy==1.0\npip\n", wheels).startswith("0\n")
    assert version(python, folder) == "1.0"
    # the image has pip, and no index was asked for it
    assert not list((folder / "packages").glob("pip*"))


@pytest.mark.extended(keep=1, of="installs")
def test_a_newer_version_counts_before_the_one_of_the_image(
    python: str, wheels: Path, tmp_path: Path
) -> None:
    pip = [python, "-m", "pip", "install", "-q", "--no-index", f"--find-links={wheels}"]
    subprocess.run([*pip, "tidy==1.0"], check=True)
    folder = tmp_path / "requirements"
    assert install(python, folder, "tidy==2.0\n", wheels).startswith("0\n")
    assert version(python, folder) == "2.0"


@pytest.mark.extended(keep=1, of="installs")
def test_what_cannot_be_installed_fails_the_container_and_says_why(
    python: str, wheels: Path, tmp_path: Path
) -> None:
    said = install(python, tmp_path / "requirements", "tidy==3.0\n", wheels)
    assert said.startswith("64\n")  # the operator tries no other start
    assert not missing(said, "tidy==3.0")


@pytest.mark.extended(keep=1, of="installs")
def test_an_image_without_pip_takes_a_wheel_of_it_or_says_what_it_lacks(
    tmp_path: Path, wheels: Path
) -> None:
    """A virtual environment without pip stands for the trainer's image, which has a wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "i")], check=True)
    bare = str(tmp_path / "i" / "bin" / "python3")
    bundled = find_spec("ensurepip")
    lacking = INSTALL.replace('"ensurepip"', '"none"').replace('"uv"', '"none"')
    lacking = lacking.replace("/usr/share/python-wheels", str(tmp_path / "wheels"))
    variables = {
        "PATH": "/nowhere",
        "REQUIREMENTS": "tidy==1.0\n",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }

    def done(folder: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / folder).mkdir()
        command = [bare, "-c", lacking, str(tmp_path / folder)]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    without = done("without")
    assert without.returncode == 64
    assert not missing(without.stderr, "pip", "ensurepip", "uv")
    if bundled is not None and bundled.origin is not None:
        (wheel,) = (Path(bundled.origin).parent / "_bundled").glob("pip-*.whl")
        (tmp_path / "wheels").mkdir()
        (tmp_path / "wheels" / wheel.name).symlink_to(wheel)
        assert done("with").returncode == 0
        assert version(bare, tmp_path / "with") == "1.0"


def test_packages_are_installed_with_the_claims_of_the_job_mounted() -> None:
    claim = {"name": "claim-0", "mountPath": "/wheels"}
    template = {"image": "any:1", "volumes": [{"name": "claim-0"}], "volumeMounts": [claim]}
    [container] = with_requirements(template, "a\n", env=[])["initContainers"]
    assert container["volumeMounts"][0] == claim


def test_pip_has_the_variables_of_the_job_and_ranks_the_path() -> None:
    env = [
        {"name": "PIP_INDEX_URL", "value": "https://packages.example.com"},
        {"name": "PYTHONPATH", "value": "/mine"},
    ]
    template = with_requirements({"image": "any:1", "env": env}, "a==$(B)\n", env=env)
    [container] = template["initContainers"]
    assert container["env"][0] == {"name": "REQUIREMENTS", "value": "a==$$(B)\n"}
    assert env[0] in container["env"]
    paths = [each["value"] for each in template["env"] if each["name"] == "PYTHONPATH"]
    assert paths == ["/requirements/packages:/mine"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("numpy\n-r more.txt\n", "line 2: '-r more.txt' names a file"),
        ("./mine\n", "line 1: './mine' names a file"),
        ("a" * (MAX_CHARS + 1), f"exceed the maximum of {MAX_CHARS}"),
    ],
)
def test_files_that_the_pod_lacks_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(text)
    with pytest.raises(BadInput, match=problem.replace(".", r"\.")):
        read_requirements(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.txt: No such file or directory$"):
        read_requirements(tmp_path / "none.txt")


def test_a_pipe_of_a_stranger_s_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "requirements.txt")
    with pytest.raises(BadInput, match="not a regular file"):
        read_requirements(tmp_path / "requirements.txt")
