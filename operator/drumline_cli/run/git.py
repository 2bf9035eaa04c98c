"""Asks git, without what the user's environment says of other repositories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline_cli.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class GitAnswer:
    """What git printed, and its exit code."""

    code: int
    output: bytes
    error: str


def ask_git(
    arguments: Sequence[str],
    *,
    at: Path,
    environment: Mapping[str, str],
    missing: str,
    given: str = "",
) -> GitAnswer:
    """Run git.

    Args:
        arguments: of git.
        at: the folder it is run in.
        environment: of this process; git's own variables in it do not count.
        missing: what to say where git is not installed.
        given: its standard input.

    Raises:
        BadInput: git is not installed.
    """
    clean = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(at), *arguments],
            input=os.fsencode(given),
            env=clean | {"LC_ALL": "C"},
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise BadInput(missing) from None
    error = done.stderr.decode(errors="replace")
    return GitAnswer(code=done.returncode, output=done.stdout, error=error)
