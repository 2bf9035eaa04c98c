from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline_contract.config import ConfigError
from drumline_trainer.compiled_kernels.machine_folder import machine_folder


def of_processors(temporary: Path) -> Path:
    return machine_folder(device="cpu", temporary=temporary, environ={}, which=str)


def test_what_is_compiled_lies_where_nobody_else_writes(tmp_path: Path) -> None:
    first = of_processors(tmp_path)
    assert first.stat().st_mode & 0o777 == 0o700
    assert of_processors(tmp_path) == first
    first.chmod(0o777)
    second = of_processors(tmp_path)
    assert (second != first, second.stat().st_mode & 0o777) == (True, 0o700)


def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"drumline-compiled-{os.getuid()}").symlink_to(tmp_path / "theirs")
    assert not of_processors(tmp_path).is_symlink()


def test_a_file_that_somebody_has_put_there_is_passed_by(tmp_path: Path) -> None:
    planted = tmp_path / f"drumline-compiled-{os.getuid()}"
    planted.touch()
    folder = of_processors(tmp_path)
    assert (folder != planted, folder.is_dir(), folder.parent) == (True, True, tmp_path)


def test_a_folder_that_somebody_names_is_taken() -> None:
    environ = {"TORCHINDUCTOR_CACHE_DIR": "/fast/disk"}
    assert machine_folder(device="cuda", environ=environ, which=str) == Path("/fast/disk")


@pytest.mark.parametrize(
    ("device", "variables", "named"),
    [
        ("cpu", {}, "a C++ compiler, and this image has no g++ or clang++;"),
        ("cuda", {}, "a C compiler, and this image has no gcc or clang;"),
        ("cuda", {"CC": "icx"}, "a C compiler, and this image has no icx;"),
    ],
)
def test_an_image_without_a_compiler_is_told_so(
    device: str, variables: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=r"^compile: torch's compiler needs") as refused:
        machine_folder(device=device, environ=variables, which=lambda _: None)
    assert named in str(refused.value)


def test_a_processor_s_compiler_needs_openssl() -> None:
    def no_openssl(program: str) -> str | None:
        return None if program == "openssl" else program

    with pytest.raises(ConfigError, match="runs the program openssl"):
        machine_folder(device="cpu", environ={}, which=no_openssl)
    environ = {"TORCHINDUCTOR_CACHE_DIR": "/fast/disk"}
    assert machine_folder(device="cuda", environ=environ, which=no_openssl) == Path("/fast/disk")
