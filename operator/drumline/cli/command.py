"""What every subcommand is: arguments it adds to the parser, and a function from them to text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Commands = Any
"""What `ArgumentParser.add_subparsers` gives; argparse does not name its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command prints, and the exit code it ends with."""

    text: str
    exit_code: int = 0


Run = Callable[[argparse.Namespace, Mapping[str, str]], Output]
"""From the arguments and the environment to the output."""


def add(
    commands: Commands, name: str, *, run: Run, summary: str, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    """A subcommand's parser; `run` is loaded with it, what `run` needs only when it runs."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser
