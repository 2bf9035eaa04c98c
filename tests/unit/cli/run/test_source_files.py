"""Which files of a folder are code, with the real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from drumline_cli.errors import BadInput
from drumline_cli.run.source_files import source_files

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_DIR": "/nonexistent"}


def git(folder: Path, *arguments: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env=environment)


def write(folder: Path, *paths: str, text: str = "") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    write(folder, ".gitignore", text="*.pt\nruns/\n")
    write(folder, "train.py", "lib/model.py", "kept.pt", "gone.py")
    git(folder, "add", "--force", ".")
    write(folder, "new.py", "weights.pt", "runs/1/log", "lib/wörter.txt")
    (folder / "gone.py").unlink()
    return folder


def test_tracked_files_and_new_ones_that_are_not_ignored(repository: Path) -> None:
    assert source_files(repository, ENVIRONMENT) == [
        *(".gitignore", "kept.pt", "lib/model.py", "lib/wörter.txt", "new.py", "train.py")
    ]


def test_a_folder_of_a_repository_knows_its_patterns(repository: Path) -> None:
    write(repository, "lib/more.pt")
    assert source_files(repository / "lib", ENVIRONMENT) == ["model.py", "wörter.txt"]


def test_drumlineignore_leaves_out_tracked_files_too(repository: Path) -> None:
    write(repository, "data/a.bin", "data/small.txt", "lib/data/b.bin")
    git(repository, "add", ".")
    write(repository, ".drumlineignore", text="/data/*\n!/data/small.txt\n*.pt\n.gitignore\n")
    assert source_files(repository, ENVIRONMENT) == [
        *(".drumlineignore", "data/small.txt", "lib/data/b.bin"),
        *("lib/model.py", "lib/wörter.txt", "new.py", "train.py"),
    ]


def test_a_repository_within_brings_its_own_files(repository: Path) -> None:
    inner = repository / "third/party"
    write(inner, ".gitignore", text="*.o\n")
    git(inner, "init", "--quiet")
    write(inner, "a.py", "a.o")
    files = source_files(repository, ENVIRONMENT)
    assert [path for path in files if path.startswith("third")] == [
        *("third/party/.gitignore", "third/party/a.py")
    ]


def test_a_folder_that_is_no_repository(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", text="*.pt\n")
    write(tmp_path, ".drumlineignore", text="notes\n")
    write(tmp_path, "train.py", "a.pt", "notes/a.txt")
    assert source_files(tmp_path, ENVIRONMENT) == [".drumlineignore", ".gitignore", "train.py"]
    assert not (tmp_path / ".git").exists()


def test_what_git_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nonexistent\n")
    with pytest.raises(BadInput, match="the folder does not exist"):
        source_files(tmp_path / "none", ENVIRONMENT)
    with pytest.raises(BadInput, match="--no-code"):
        source_files(tmp_path, {**ENVIRONMENT, "PATH": "/nonexistent"})
