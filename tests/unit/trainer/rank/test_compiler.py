from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline_trainer.config import ConfigError
from drumline_trainer.rank.compiler import prepare_compiler


def test_what_is_compiled_lies_where_nobody_else_writes(tmp_path: Path) -> None:
    def folder() -> Path:
        environ: dict[str, str] = {}
        prepare_compiler(device="cpu", temporary=tmp_path, environ=environ, which=str)
        return Path(environ["TORCHINDUCTOR_CACHE_DIR"])

    first = folder()
    assert first.stat().st_mode & 0o777 == 0o700
    assert folder() == first
    first.chmod(0o777)
    second = folder()
    assert (second != first, second.stat().st_mode & 0o777) == (True, 0o700)


def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"drumline-compiled-{os.getuid()}").symlink_to(tmp_path / "theirs")
    environ: dict[str, str] = {}
    prepare_compiler(device="cpu", temporary=tmp_path, environ=environ, which=str)
    assert not Path(environ["TORCHINDUCTOR_CACHE_DIR"]).is_symlink()


def test_a_folder_that_somebody_names_is_taken() -> None:
    environ = {"TORCHINDUCTOR_CACHE_DIR": "/fast/disk"}
    prepare_compiler(device="cuda", environ=environ, which=str)
    assert environ == {"TORCHINDUCTOR_CACHE_DIR": "/fast/disk"}


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
        prepare_compiler(device=device, environ=dict(variables), which=lambda _: None)
    assert named in str(refused.value)
