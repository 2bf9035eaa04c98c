"""List the code files of a folder: what git would keep, without what .drumlineignore names.

Git answers both questions, so its patterns mean here what they mean everywhere. A folder that is no
repository is asked about with an empty one beside it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from drumline_cli.errors import BadInput
from drumline_cli.run.git import GitAnswer, ask_git
from drumline_contract import plain

IGNORE_FILE: Final = ".drumlineignore"
_LISTED: Final = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
_UNTRACKED: Final = ("ls-files", "-z", "--others", "--exclude-standard")
_MISSING: Final = (
    "git is not installed, but it determines which files of a folder are its code; install it,"
    " or use --no-code if the image has the code"
)


def source_files(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return sorted relative paths of tracked files and of files that git does not ignore.

    Args:
        folder: a repository, a folder inside of it, or any other folder.
        environment: environment variables of this process; git's own variables in it do not count.

    Raises:
        BadInput: there is no such folder, no git, or git refuses.
    """
    if not folder.is_dir():
        # A missing folder would look like an empty one.
        problem = "not a folder" if folder.exists() else "the folder does not exist"
        raise BadInput(f"{folder}: {problem}")
    with tempfile.TemporaryDirectory(prefix="drumline-") as scratch:
        # An empty repository answers the same questions for folders without git.
        empty = Path(scratch)
        _checked(_git(["init", "--quiet"], at=empty, environment=environment), at=empty)
        listed = _listed(folder, empty=empty, environment=environment)
        ignored = _ignored(folder, listed, empty=empty, environment=environment)
    return sorted(set(listed) - ignored)


def _listed(folder: Path, *, empty: Path, environment: Mapping[str, str]) -> list[str]:
    # A subfolder of a repository also counts.
    inside = _git(["rev-parse", "--is-inside-work-tree"], at=folder, environment=environment)
    if inside.code == 0:
        answer = _git(_LISTED, at=folder, environment=environment)
    elif "not a git repository" in inside.error:
        place = [f"--git-dir={empty / '.git'}", f"--work-tree={folder.absolute()}"]
        answer = _git([*place, *_UNTRACKED], at=folder, environment=environment)
    else:
        answer = inside
    paths: list[str] = []
    # A submodule lists its own files.
    names = _names(_checked(answer, at=folder))
    # The index of a foreign repository is not trusted.
    outside = _outside(folder, names)
    for path in names:
        if path in outside:
            continue
        where = folder / path
        if where.is_dir() and not where.is_symlink():  # a repository within this one, a submodule
            within = _listed(where, empty=empty, environment=environment)
            paths += (f"{path.rstrip('/')}/{name}" for name in within)
        elif os.path.lexists(where):  # not deleted since it was added
            paths.append(path)
    return paths


def _outside(folder: Path, paths: Sequence[str]) -> set[str]:
    """Return the paths that leave the folder, upwards or through a link.

    A stranger's index may list `../.ssh/id` or, beside the link `lib -> /home`, `lib/x`.
    """
    pure = {path: PurePosixPath(path) for path in paths}
    parents = {parent for path in pure.values() for parent in path.parents if parent.name}
    links = {parent for parent in parents if (folder / parent).is_symlink()}
    return {
        text
        for text, path in pure.items()
        if path.is_absolute() or ".." in path.parts or not links.isdisjoint(path.parents)
    }


def _ignored(
    folder: Path, paths: Sequence[str], *, empty: Path, environment: Mapping[str, str]
) -> set[str]:
    patterns = (folder / IGNORE_FILE).absolute()
    if not patterns.is_file() or not paths:
        return set()
    # `--no-index` applies the patterns to tracked files as well.
    ask = ["-c", f"core.excludesFile={patterns}", "check-ignore", "--no-index", "-z", "--stdin"]
    answer = _git(ask, at=empty, environment=environment, given="\0".join(paths))
    if answer.code == 1:  # none of them
        return set()
    return set(_names(_checked(answer, at=folder)))


def _git(
    arguments: Sequence[str], *, at: Path, environment: Mapping[str, str], given: str = ""
) -> GitAnswer:
    return ask_git(arguments, at=at, environment=environment, missing=_MISSING, given=given)


def _checked(answer: GitAnswer, *, at: Path) -> bytes:
    if answer.code:
        raise BadInput(f"git fails to list {at}: {plain(answer.error[:500])}")
    return answer.output


def _names(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0") if name]
