"""Run git in folders that other people wrote, without running their programs.

A repository's own configuration names programs: file system monitors, hooks, filters, transports.
Every git call of the command line goes through `ask_git`, which switches these off. The user's
own configuration stays in force.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drumline_cli.errors import BadInput
from drumline_contract import plain

_SAFE: Final = (
    "--no-pager",
    # a program that lists changed files: ls-files and status run it
    *("-c", "core.fsmonitor=false"),
    # hooks: status runs post-index-change after it writes the index
    *("-c", "core.hooksPath=/dev/null"),
    # a bare repository among the files of a clone: its configuration came with the clone
    *("-c", "safe.bareRepository=explicit"),
)
_VARIABLES: Final = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    # missing objects of a partial clone are not fetched: a transport runs ssh or a helper
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
_PROGRAM: Final = re.compile(r"(filter|hook)\.(.+)\.[a-z]+", re.DOTALL)
_OFF: Final = {
    "filter": {"clean": "", "smudge": "", "process": "", "required": "false"},
    "hook": {"enabled": "false"},
}
"""Settings that switch off one named filter or hook; their names are free, so they are listed."""
_TRUSTED: Final = ("system", "global", "command")
"""Scopes of git's configuration that the user controls, not the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitAnswer:
    """Output of git, and its exit code."""

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
    """Run git without the programs that the repository's configuration names.

    Args:
        arguments: arguments of git.
        at: the folder it is run in.
        environment: environment variables of this process; git's own variables in it do not count.
        missing: message if git is not installed.
        given: standard input of git.

    Raises:
        BadInput: git is not installed, or a filter has a name that cannot be switched off.
    """
    # Variables such as GIT_DIR could redirect git to another repository.
    clean = {name: value for name, value in environment.items() if not name.startswith("GIT_")}

    def git(options: Sequence[str], given: str = "") -> GitAnswer:
        try:
            done = subprocess.run(
                ["git", "-C", str(at), *_SAFE, *options],
                input=os.fsencode(given),
                env=clean | _VARIABLES,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            raise BadInput(missing) from None
        error = done.stderr.decode(errors="replace")
        return GitAnswer(code=done.returncode, output=done.stdout, error=error)

    # The configuration is read first, because names of filters are free text.
    settings = git(("config", "--list", "--show-scope", "--name-only", "-z"))
    if settings.code:
        return settings
    return git((*_without_programs(settings.output, at=at), *arguments), given)


def _without_programs(settings: bytes, *, at: Path) -> list[str]:
    """Return git options that disable filters and hooks of the repository's configuration.

    Args:
        settings: alternating scopes and names, each ended by a NUL.
        at: the folder, for messages.
    """
    fields = [os.fsdecode(field) for field in settings.split(b"\0")]
    options: list[str] = []
    # Each setting appears once per file, so duplicates are removed.
    for scope, name in sorted(set(zip(fields[::2], fields[1::2], strict=False))):
        named = _PROGRAM.fullmatch(name)
        # Settings of the user are trusted. Only those of the repository are switched off.
        if named is None or scope in _TRUSTED:
            continue
        kind, subsection = named.groups()
        if "=" in subsection:  # git -c ends the name at the first one
            raise BadInput(
                f"{at}: the repository's git configuration names the {kind}"
                f" {plain(subsection)!r}, which cannot be switched off; remove it from .git/config"
            )
        for key, value in _OFF[kind].items():
            options += ("-c", f"{kind}.{subsection}.{key}={value}")
    return options
