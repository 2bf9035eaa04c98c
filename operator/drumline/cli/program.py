"""The command line: arguments in, text and an exit code out.

Exit codes: 0 told; 1 the cluster was asked and did not give it, or what was compared differs; 2
the arguments, a file or the kubeconfig are not usable. Only the standard library is loaded until a
command is known.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drumline.cli.command import Output
from drumline.cli.decide import command as decide_command
from drumline.cli.errors import CommandError
from drumline.cli.replay import command as replay_command
from drumline.cli.report import command as report_command
from drumline.cli.simulate import command as simulate_command

_COMMANDS: Final = (report_command, decide_command, replay_command, simulate_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` are those of the process by default."""
    chosen = _parser().parse_args(arguments)
    try:
        output: Output = chosen.run(chosen, os.environ)
        sys.stdout.write(output.text)
        sys.stdout.flush()
    except CommandError as error:
        sys.stderr.write(f"drumline: {error}\n")
        return error.exit_code
    except BrokenPipeError:  # the reader has seen enough: `drumline report ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return output.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_name(), description="Drumline: training jobs on Kubernetes.", allow_abbrev=False
    )
    commands = parser.add_subparsers(title="commands", dest="command", required=True)
    for command in _COMMANDS:
        command.add(commands)
    return parser


def _name() -> str:
    """Kubectl calls its plugins by their file's name, and people see `kubectl drumline`."""
    called = Path(sys.argv[0]).name
    return "kubectl drumline" if called.startswith("kubectl-") else "drumline"
