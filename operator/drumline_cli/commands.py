"""The module that runs each command, by name.

Every module has `run(chosen, environment)`. It is imported when its command runs, so that `--help`
is answered at once and an installation needs only the extras of the commands that it uses. Nothing
here imports them, so they may live in other packages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final

from drumline_cli.errors import BadInput, install_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The text that a command prints, and its exit code."""

    text: str
    exit_code: int = 0


Run = Callable[[argparse.Namespace, Mapping[str, str]], Output]

MODULES: Final[Mapping[str, str]] = {
    "run": "drumline_cli.run.command",
    "shell": "drumline_cli.run.terminal",
    **dict.fromkeys(
        ("logs", "port-forward", "clone", "retry", "hold", "stop", "resume", "delete"),
        "drumline_cli.jobs.command",
    ),
    "cp": "drumline_cli.claims.command",
    "export": "drumline_cli.claims.export",
    "sweep": "drumline_cli.jobs.sweep_table",
    **dict.fromkeys(
        ("list", "queue", "why", "nodes", "share", "usage"), "drumline_cli.overview.command"
    ),
    "gantt": "drumline_console.gantt.command",
    "diff": "drumline_cli.diff.command",
    "history": "drumline_cli.history.command",
    "top": "drumline_console.top.command",
    "ui": "drumline_console.ui.command",
    "mcp": "drumline_cli.mcp.command",
    "export-trace": "drumline_simulator.export_trace.command",
    "report": "drumline_cli.report.command",
    "decide": "drumline_cli.decide.command",
    "replay": "drumline_cli.replay.command",
    "upgrade": "drumline_cli.replay.upgrade",
    "simulate": "drumline_simulator.simulate.command",
    "doctor": "drumline_cli.doctor.command",
    "restore": "drumline_cli.restore.command",
    "check-nodes": "drumline_cli.check_nodes.command",
    "completion": "drumline_cli.completion",
    "convert": "drumline_cli.convert.command",
    "data": "drumline_cli.data.command",
    "plan": "drumline_cli.plan.command",
}
_EXTRAS: Final[Mapping[str, str]] = {
    "simulate": "simulator",
    **dict.fromkeys(("gantt", "top", "ui"), "console"),
}
"""The extra whose packages a command needs; default: `cli`."""


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Run the chosen command.

    Raises:
        CommandError: the command failed, or a package that it needs is not installed.
    """
    name: str = chosen.command
    # YAML is a conversion of the JSON output, so commands know only one of them.
    is_yaml = getattr(chosen, "output", None) == "yaml"
    if is_yaml:
        chosen.output = "json"
    try:
        execute: Run = import_module(MODULES[name]).run
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        # A missing module of ours is a bug, not a missing extra.
        if package.startswith("drumline"):
            raise
        extra = _EXTRAS.get(name, "cli")
        raise BadInput(
            f"`drumline {name}` needs the package {package}. {install_extra(extra)}"
        ) from None
    output = execute(chosen, environment)
    return _as_yaml(output) if is_yaml else output


def _as_yaml(output: Output) -> Output:
    from drumline_cli.job_yaml import job_yaml  # noqa: PLC0415 - rarely asked for

    document = json.loads(output.text)
    return replace(output, text=job_yaml([document]))
