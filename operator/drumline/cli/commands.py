"""Which module runs each command, by name.

Every module has `run(chosen, environment)`. It is imported when its command runs, so that `--help`
is answered at once and an installation needs only the extras of the commands that it uses. Nothing
here imports them, so they may live in other packages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from drumline.cli.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command prints, and the exit code it ends with."""

    text: str
    exit_code: int = 0


Run = Callable[[argparse.Namespace, Mapping[str, str]], Output]

MODULES: Final[Mapping[str, str]] = {
    "run": "drumline.cli.run.command",
    "shell": "drumline.cli.run.terminal",
    **dict.fromkeys(
        ("logs", "cp", "port-forward", "clone", "hold", "stop", "resume", "delete"),
        "drumline.cli.jobs.command",
    ),
    **dict.fromkeys(
        ("list", "queue", "why", "nodes", "share", "usage"), "drumline.cli.overview.command"
    ),
    "gantt": "drumline.cli.gantt.command",
    "diff": "drumline.cli.diff.command",
    "history": "drumline.cli.history.command",
    "top": "drumline.cli.top.command",
    "ui": "drumline.cli.ui.command",
    "mcp": "drumline.cli.mcp.command",
    "export-trace": "drumline.cli.export_trace.command",
    "report": "drumline.cli.report.command",
    "decide": "drumline.cli.decide.command",
    "replay": "drumline.cli.replay.command",
    "upgrade": "drumline.cli.replay.upgrade",
    "simulate": "drumline.cli.simulate.command",
    "doctor": "drumline.cli.doctor.command",
    "restore": "drumline.cli.restore.command",
    "check-nodes": "drumline.cli.check_nodes.command",
    "completion": "drumline.cli.completion",
    "convert": "drumline.cli.convert.command",
    "plan": "drumline.cli.plan.command",
}
_EXTRAS: Final[Mapping[str, str]] = {"simulate": "simulator"}
"""The extra whose packages a command needs; default: `cli`."""


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Run the chosen command.

    Raises:
        CommandError: the command failed, or a package that it needs is not installed.
    """
    name: str = chosen.command
    try:
        execute: Run = import_module(MODULES[name]).run
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package.startswith("drumline"):
            raise
        extra = _EXTRAS.get(name, "cli")
        raise BadInput(
            f"`drumline {name}` needs the package {package}: pip install 'drumline[{extra}]'"
        ) from None
    return execute(chosen, environment)
