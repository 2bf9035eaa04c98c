"""The exit codes of every command, and the lines about them at the end of each help."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class CommandExit(IntEnum):
    """The exit code of a command."""

    DONE = 0
    """The command did what was asked."""
    NOT_DONE = 1
    """The cluster refused, did not answer, or does not have the object."""
    BAD_INPUT = 2
    """An argument, a file or the kubeconfig cannot be used."""
    JOB_FAILED = 3
    """The command followed a job, and the job failed."""
    INTERRUPTED = 130
    """The user pressed Ctrl-C; the number is that of shells."""


MEANINGS: Final[Mapping[CommandExit, str]] = {
    CommandExit.DONE: "the command did what you asked",
    CommandExit.NOT_DONE: "the cluster refused, did not answer, or does not have the object",
    CommandExit.BAD_INPUT: "an argument, a file or the kubeconfig cannot be used",
    CommandExit.JOB_FAILED: "the job failed",
    CommandExit.INTERRUPTED: "Ctrl-C",
}
_FOLLOWS: Final = frozenset(("run", "logs"))
"""Commands that follow a job to its end."""
_ALSO: Final[Mapping[str, str]] = {
    "decide": "or a job or an object would be refused",
    "replay": "the decisions differ",
    "upgrade": "an outcome differs, or a rule is broken",
    "plan": "no layout fits",
    "doctor": "or a check failed",
    "check-nodes": "or a node failed",
}
"""A further meaning of the exit code 1, by command."""
_BECOMES_KUBECTL: Final = frozenset(("shell", "port-forward"))


def exit_codes_of(command: str) -> str:
    """Return the lines about the exit codes of a command."""
    lines = [f"  {CommandExit.DONE}  {MEANINGS[CommandExit.DONE]}"]
    not_done = MEANINGS[CommandExit.NOT_DONE]
    also = _ALSO.get(command, "")
    if also:
        not_done = f"{not_done}, {also}" if also.startswith("or ") else also
    lines.append(f"  {CommandExit.NOT_DONE}  {not_done}")
    lines.append(f"  {CommandExit.BAD_INPUT}  {MEANINGS[CommandExit.BAD_INPUT]}")
    if command in _FOLLOWS:
        lines.append(f"  {CommandExit.JOB_FAILED}  {MEANINGS[CommandExit.JOB_FAILED]}")
    if command in _BECOMES_KUBECTL:
        lines.append("  otherwise the exit code of kubectl, and so of the command in the pod")
    return "exit codes:\n" + "".join(f"{line}\n" for line in lines)
