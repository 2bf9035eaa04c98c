"""List the commands of the parser, and their arguments.

argparse has no public way to walk a parser; shtab and argcomplete read the same attributes. They
are read here and nowhere else.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Run": (
        "run",
        "shell",
        "logs",
        "cp",
        "port-forward",
        "export",
        "clone",
        "retry",
        "hold",
        "stop",
        "resume",
        "delete",
    ),
    "Look": (
        "list",
        "sweep",
        "queue",
        "why",
        "report",
        "diff",
        "nodes",
        "share",
        "usage",
        "history",
        "top",
        "gantt",
        "ui",
        "mcp",
    ),
    "Decide": ("plan", "data", "decide", "convert", "simulate", "replay", "upgrade"),
    "Operate": ("doctor", "check-nodes", "restore", "export-trace", "completion"),
}
"""The commands by what they are for, as the help lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of the program.

    Attributes:
        name: as it is typed.
        summary: a line about it.
        parser: parser of its arguments.
    """

    name: str
    summary: str
    parser: argparse.ArgumentParser


def commands(parser: argparse.ArgumentParser) -> Sequence[Command]:
    """Return the commands of a parser with subcommands, in its order."""
    choice = cast("Any", next(each for each in arguments(parser) if each.dest == "command"))
    parsers: Mapping[str, argparse.ArgumentParser] = choice.choices
    return [
        Command(name=each.dest, summary=each.help or "", parser=parsers[each.dest])
        for each in choice._choices_actions  # noqa: SLF001 - see the module
    ]


def arguments(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    """Positional arguments and options of a parser, in its order."""
    return parser._actions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - see the module
