"""Define the parts of a command's grammar, and shared arguments. Uses only argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CommandGrammar:
    """The grammar of one command.

    Attributes:
        name: as it is typed.
        summary: a line for the list of commands.
        description: at the top of its help.
        add: adds its arguments.
        examples: at the end of its help.
    """

    name: str
    summary: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]
    examples: str = ""


def add_job(command: argparse.ArgumentParser) -> None:
    """Add the name of a job."""
    command.add_argument("job", metavar="JOB", help="name of the TrainingJob")


def add_namespace(
    command: argparse.ArgumentParser, words: str = "namespace (default: the context's namespace)"
) -> None:
    """Add the namespace."""
    command.add_argument("-n", "--namespace", help=words)


def add_context(command: argparse.ArgumentParser) -> None:
    """Add the way to a cluster."""
    command.add_argument("--context", help="context of the kubeconfig")
    command.add_argument("--kubeconfig", type=Path, metavar="FILE", help="kubeconfig to use")
    add_identity(command)


def add_identity(command: argparse.ArgumentParser) -> None:
    """Add the identity to act as."""
    command.add_argument("--as", dest="act_as", metavar="USER", default="", help="user to act as")
    command.add_argument(
        "--as-group",
        dest="act_as_groups",
        metavar="GROUP",
        action="append",
        default=[],
        help="group to act as; repeatable, with --as",
    )
    command.add_argument(
        "--as-uid", dest="act_as_uid", metavar="UID", default="", help="UID to act as, with --as"
    )


def acts_as_another(chosen: argparse.Namespace) -> bool:
    """Return whether `add_identity` was given an identity."""
    return bool(chosen.act_as or chosen.act_as_groups or chosen.act_as_uid)


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Add the namespace and the way to its cluster."""
    add_namespace(command)
    add_context(command)


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a type of argparse: a whole number within bounds.

    Args:
        least: smallest valid number.
        most: largest valid number.
    """

    def parsed(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text}: want {least} to {most}")
        return number

    return parsed


def finite_number(text: str) -> float:
    """Parse a number for argparse. `nan` would pass every comparison with a bound.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text}: want a number")
    return number


def add_output(command: argparse.ArgumentParser, *formats: str) -> None:
    """Add the form of the output; the first one is the default."""
    command.add_argument(
        "-o",
        "--output",
        choices=formats,
        default=formats[0],
        help=f"output format (default: {formats[0]})",
    )
