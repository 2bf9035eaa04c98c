"""The command line: arguments in, text and an exit code out.

`exit_codes` has the meaning of each exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from drumline_cli import commands
from drumline_cli.arguments import parser
from drumline_cli.command_line import parse
from drumline_cli.completion_words import COMPLETE, complete
from drumline_cli.errors import CommandError, OutputLost
from drumline_cli.exit_codes import CommandExit
from drumline_cli.run_arguments import split_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` are those of the process by default."""
    _prepare_streams()
    words = sys.argv[1:] if arguments is None else list(arguments)
    # Completion runs on every key press, so it avoids the grammar.
    if words[:1] == [COMPLETE]:
        return complete(words[1:])
    # Words after `--` belong to the user's program.
    given, command_line = split_command(words)
    chosen = parse(parser(_program_name()), given)
    chosen.command_line = command_line
    try:
        output = commands.run(chosen, os.environ)
    except OutputLost as error:
        _close_output()
        sys.stderr.write(f"drumline: {error}\n")
        return error.exit_code
    except CommandError as error:
        # Errors are one sentence on standard error, so standard output stays usable.
        sys.stderr.write(f"drumline: {error}\n")
        return error.exit_code
    except BrokenPipeError:  # of a command that prints by itself, such as `logs -f`
        return _close_output()
    except KeyboardInterrupt:
        # A command with something to say about it has caught it.
        return CommandExit.INTERRUPTED
    return _print(output)


def _prepare_streams() -> None:
    """Replace closed streams by /dev/null, and print `?` for characters that cannot be encoded."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the shell closed it: `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    # A terminal or a file may have an encoding without the characters of charts.
    output: object = sys.stdout
    if isinstance(output, TextIOWrapper):
        output.reconfigure(errors="replace")


def _print(output: commands.Output) -> int:
    try:
        sys.stdout.write(output.text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough: `drumline report ... | head`
        return _close_output()
    except OSError as error:  # the disk of a file is full
        _close_output()
        sys.stderr.write(f"drumline: standard output: {error.strerror}\n")
        return CommandExit.NOT_DONE
    return output.exit_code


def _close_output() -> int:
    # Without this, the interpreter reports the error again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CommandExit.DONE


def _program_name() -> str:
    """Kubectl calls its plugins by their file's name, and people see `kubectl drumline`."""
    called = Path(sys.argv[0]).name
    return "kubectl drumline" if called.startswith("kubectl-") else "drumline"
