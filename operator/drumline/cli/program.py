"""The command line: arguments in, text and an exit code out.

Exit codes: 0 the command did what was asked; 1 the cluster did not give what was asked for, a
replayed cycle differs, no layout fits, or a check of the doctor or of a node failed; 2 the
arguments, a file or the kubeconfig are not usable.

A command's module is imported when it is run, here and nowhere else; the modules below import what
they need at their top.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from drumline.cli.arguments import parser
from drumline.cli.errors import CommandError
from drumline.cli.output import Output
from drumline.cli.run_arguments import split_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` are those of the process by default."""
    given, command_line = split_command(sys.argv[1:] if arguments is None else arguments)
    chosen = parser(_program_name()).parse_args(given)
    chosen.command_line = command_line
    try:
        output = _run(chosen, os.environ)
        sys.stdout.write(output.text)
        sys.stdout.flush()
    except CommandError as error:
        sys.stderr.write(f"drumline: {error}\n")
        return error.exit_code
    except BrokenPipeError:  # the reader has seen enough: `drumline report ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return output.exit_code


def _run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    match chosen.command:
        case "report":
            from drumline.cli.report import command  # noqa: PLC0415 - 0.7 s that --help saves

            return command.run(chosen, environment)
        case "run" | "shell":
            return _run_on_gpus(chosen, environment)
        case "logs" | "cp" | "port-forward" | "stop" | "resume" | "hold" | "clone" | "delete":
            from drumline.cli.jobs import command  # noqa: PLC0415 - 0.5 s that --help saves

            return command.run(chosen, environment)
        case "list" | "queue" | "why" | "nodes" | "share" | "usage" | "gantt":
            from drumline.cli.overview import command  # noqa: PLC0415 - 0.5 s that --help saves

            return command.run(chosen, environment)
        case "history":
            from drumline.cli.history import command  # noqa: PLC0415 - 0.7 s that --help saves

            return command.run(chosen, environment)
        case "diff":
            from drumline.cli.diff import command  # noqa: PLC0415 - 0.7 s that --help saves

            return command.run(chosen, environment)
        case "top":
            from drumline.cli.top import command  # noqa: PLC0415 - 0.5 s that --help saves

            return command.run(chosen, environment)
        case "export-trace":
            from drumline.cli.export_trace import command  # noqa: PLC0415 - 0.5 s that --help saves

            return command.run(chosen, environment)
        case "ui":
            from drumline.cli.ui import command  # noqa: PLC0415 - 0.7 s that --help saves

            return command.run(chosen, environment)
        case "mcp":
            from drumline.cli.mcp import command  # noqa: PLC0415 - rarely wanted

            return command.run(
                chosen, environment, parse=parser("drumline").parse_args, execute=_run
            )
        case "doctor" | "check-nodes":
            return _run_for_administrators(chosen, environment)
        case _:
            return _run_on_files(chosen, environment)


def _run_on_gpus(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """A command or a shell: in a new job, or in a pod of one that is there."""
    if chosen.command == "run":
        from drumline.cli.run import command  # noqa: PLC0415 - 0.7 s that --help saves

        return command.run(chosen, environment)
    if chosen.job is None:
        from drumline.cli.run import terminal  # noqa: PLC0415 - 0.7 s that --help saves

        return terminal.run(chosen, environment)
    from drumline.cli.jobs import command as of_a_job  # noqa: PLC0415 - 0.5 s that --help saves

    return of_a_job.run(chosen, environment)


def _run_for_administrators(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The commands for whoever runs the cluster."""
    if chosen.command == "doctor":
        from drumline.cli.doctor import command  # noqa: PLC0415 - 0.7 s that --help saves

        return command.run(chosen, environment)
    from drumline.cli.check_nodes import command  # noqa: PLC0415 - 0.7 s that --help saves

    return command.run(chosen, environment)


def _run_on_files(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The commands that can do without a cluster."""
    match chosen.command:
        case "decide":
            from drumline.cli.decide import command  # noqa: PLC0415 - 0.7 s that --help saves

            return command.run(chosen, environment)
        case "replay":
            from drumline.cli.replay import command  # noqa: PLC0415 - 0.7 s that --help saves

            return command.run(chosen)
        case "upgrade":
            from drumline.cli.replay import upgrade  # noqa: PLC0415 - 0.7 s that --help saves

            return upgrade.run(chosen)
        case "restore":
            from drumline.cli.restore import command  # noqa: PLC0415 - 0.5 s that --help saves

            return command.run(chosen)
        case "completion":
            from drumline.cli.completion import scripts  # noqa: PLC0415 - rarely wanted

            return Output(text=scripts.script(parser("drumline"), kind=chosen.shell))
        case "convert":
            from drumline.cli.convert import command  # noqa: PLC0415 - 0.5 s that --help saves

            return command.run(chosen)
        case "plan":
            from drumline.cli.plan import command  # noqa: PLC0415 - 0.5 s that --help saves

            return command.run(chosen)
        case _:
            from drumline.cli.simulate import command  # noqa: PLC0415 - 0.7 s that --help saves

            return command.run(chosen)


def _program_name() -> str:
    """Kubectl calls its plugins by their file's name, and people see `kubectl drumline`."""
    called = Path(sys.argv[0]).name
    return "kubectl drumline" if called.startswith("kubectl-") else "drumline"
