"""No git call of the command line runs a program of the folder's repository, with the real git.

Every setting that names a program is armed at once, with a program that leaves a mark.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline_cli.errors import BadInput
from drumline_cli.run.code_from import code_from
from drumline_cli.run.git import ask_git
from drumline_cli.run.source_files import source_files

HERE = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
}
ARMED = """
[core]
	fsmonitor = "PROGRAM fsmonitor; false #"
	hooksPath = HOOKS
	sshCommand = "PROGRAM ssh"
	gitProxy = "PROGRAM proxy"
	pager = "PROGRAM pager"
	editor = "PROGRAM editor"
	askPass = "PROGRAM"
	alternateRefsCommand = "PROGRAM refs"
[pager]
	status = "PROGRAM pager"
	branch = "PROGRAM pager"
	config = "PROGRAM pager"
[filter "a"]
	clean = "PROGRAM clean"
	smudge = "PROGRAM smudge"
	required = true
[filter "b.c d"]
	process = "PROGRAM process"
	required = true
[diff]
	external = "PROGRAM external"
	renames = true
[diff "a"]
	command = "PROGRAM command"
	textconv = "PROGRAM textconv"
[merge "a"]
	driver = "PROGRAM driver"
[hook "a"]
	event = post-index-change
	command = "PROGRAM hook"
[alias]
	status = "!PROGRAM alias"
	ls-files = "!PROGRAM alias"
	config = "!PROGRAM alias"
[credential]
	helper = "!PROGRAM helper"
[gpg]
	program = "PROGRAM"
[log]
	showSignature = true
[status]
	submoduleSummary = true
[submodule]
	recurse = true
[protocol]
	allow = always
[protocol "ext"]
	allow = always
[extensions]
	partialClone = evil
[remote "evil"]
	url = "ext::PROGRAM transport"
	promisor = true
	uploadpack = "PROGRAM uploadpack"
"""


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    command = ["git", "-C", str(folder), *author, *arguments]
    subprocess.run(command, check=True, env=HERE, capture_output=True)


def repository(folder: Path) -> Path:
    """A repository with one commit that origin has, and files that filters are for."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "train.py").write_text("x")
    (folder / "weights.bin").write_text("x")
    (folder / ".gitattributes").write_text('*.py filter=a diff=a merge=a\n*.bin filter="b.c d"\n')
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=x")
    git(folder, "remote", "add", "origin", "https://git.example.com/a.git")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    return folder


def arm(git_folder: Path, *, marks: Path) -> None:
    """Name a program in each setting, as hooks, and in a file that the configuration includes."""
    marks.mkdir(exist_ok=True)
    program = marks.parent / "program"
    program.write_text(f'#!/bin/sh\ntouch "{marks}/$(basename "$0").$1"\nprintf "0\\0/\\0"\n')
    program.chmod(0o755)
    hooks = marks.parent / "hooks"
    for folder in (hooks, git_folder / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(program)
    text = ARMED.replace("PROGRAM", str(program)).replace("HOOKS", str(hooks))
    (git_folder / "armed").write_text(text)
    with (git_folder / "config").open("a") as config:
        config.write("[include]\n\tpath = armed\n")


def own(folder: Path, marks: Path) -> Path:
    repository(folder)
    arm(folder / ".git", marks=marks)
    return folder


def below_another(folder: Path, marks: Path) -> Path:
    repository(folder)
    own(folder / "third_party" / "lib", marks)
    return folder


def below_no_repository(folder: Path, marks: Path) -> Path:
    own(folder / "third_party" / "lib", marks)
    (folder / "train.py").write_text("x")
    return folder


def of_worktree(folder: Path, marks: Path) -> Path:
    repository(folder)
    git(folder, "config", "extensions.worktreeConfig", "true")
    (folder / ".git" / "config.worktree").touch()
    arm(folder / ".git", marks=marks)
    config = (folder / ".git" / "config").read_text()
    (folder / ".git" / "config.worktree").write_text("[include]\n\tpath = armed\n")
    (folder / ".git" / "config").write_text(config.replace("\tpath = armed\n", ""))
    return folder


def touch(folder: Path) -> None:
    """Change the times of all files: git compares their contents then, and runs filters."""
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (1, 1))


@pytest.mark.parametrize("build", [own, below_another, below_no_repository, of_worktree])
def test_listing_files_runs_no_program(tmp_path: Path, build: Callable[[Path, Path], Path]) -> None:
    folder = build(tmp_path / "repository", tmp_path / "marks")
    touch(folder)
    files = source_files(folder, HERE)
    assert [path for path in files if path.endswith("train.py")]
    assert list((tmp_path / "marks").iterdir()) == []


@pytest.mark.parametrize("build", [own, below_another, of_worktree])
def test_naming_the_commit_runs_no_program(
    tmp_path: Path, build: Callable[[Path, Path], Path]
) -> None:
    folder = build(tmp_path / "repository", tmp_path / "marks")
    (folder / ".git" / "info" / "exclude").write_text("third_party\n")
    touch(folder)
    code_from("git", folder=folder, image="", environment=HERE)
    assert list((tmp_path / "marks").iterdir()) == []


def test_a_submodule_runs_no_program(tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner")
    folder = repository(tmp_path / "repository")
    git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "s")
    git(folder, "commit", "--quiet", "--message=s")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    arm(folder / ".git" / "modules" / "s", marks=tmp_path / "marks")
    touch(folder)
    code_from("git", folder=folder, image="", environment=HERE)
    assert "s/train.py" in source_files(folder, HERE)
    assert list((tmp_path / "marks").iterdir()) == []


def test_missing_objects_of_a_partial_clone_are_not_fetched(tmp_path: Path) -> None:
    folder = own(tmp_path / "repository", tmp_path / "marks")
    commit = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD^{tree}"], check=True, capture_output=True
    ).stdout.decode()
    (folder / ".git" / "objects" / commit[:2] / commit[2:].strip()).unlink()
    with pytest.raises(BadInput, match="git fails"):
        code_from("git", folder=folder, image="", environment=HERE)
    assert list((tmp_path / "marks").iterdir()) == []


def test_a_bare_repository_among_a_clone_s_files_is_refused(tmp_path: Path) -> None:
    folder = repository(tmp_path / "clone") / "train"
    for name in ("objects", "refs"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ../train\n"
    )
    (folder / "train.py").write_text("x")
    arm(folder, marks=tmp_path / "marks")
    with pytest.raises(BadInput, match="bare"):
        source_files(folder, HERE)
    with pytest.raises(BadInput, match="bare"):
        code_from("git", folder=folder, image="", environment=HERE)
    assert "train/train.py" in source_files(folder.parent, HERE)
    assert list((tmp_path / "marks").iterdir()) == []


def test_a_filter_that_cannot_be_switched_off_is_refused(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    git(folder, "config", "filter.a=b.clean", "touch /nonexistent/mark")
    with pytest.raises(BadInput, match=r"filter 'a=b'.*\.git/config"):
        source_files(folder, HERE)


def test_filters_of_the_user_s_own_configuration_stay(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text('[filter "a"]\n\tclean = sed s/y/x/\n')
    (folder / "train.py").write_text("y")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    answer = ask_git(("status", "--porcelain"), at=folder, environment=environment, missing="")
    assert answer.output == b""
    (home / ".gitconfig").unlink()
    answer = ask_git(("status", "--porcelain"), at=folder, environment=environment, missing="")
    assert answer.output == b" M train.py\n"


def test_an_index_that_names_files_outside_of_the_folder_brings_none(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("key")
    folder = repository(tmp_path / "repository")
    (folder / "lib").mkdir()
    (folder / "lib" / "key").write_text("x")
    git(folder, "add", ".")
    (folder / "lib" / "key").unlink()
    (folder / "lib").rmdir()
    (folder / "lib").symlink_to(tmp_path / "secrets")
    index = folder / ".git" / "index"
    named = index.read_bytes()[:-20].replace(b"weights.bin", b"../aaaa.bin")
    index.write_bytes(named + hashlib.sha1(named, usedforsecurity=False).digest())
    (tmp_path / "aaaa.bin").write_text("key")
    linked = tmp_path / "linked"
    linked.symlink_to(folder)  # a folder that is itself given by a link
    assert source_files(linked, HERE) == [".gitattributes", "lib", "train.py", "weights.bin"]
