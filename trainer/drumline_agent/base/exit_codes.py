"""Exit codes of processes: as a pod shows them, and in words."""

from __future__ import annotations

import signal
from typing import Final

from drumline_contract import ExitCode

SIGNALS_FROM_OUTSIDE: Final = (-signal.SIGKILL, -signal.SIGTERM)
"""Ends of a process that no program brings upon itself: a person, a node's agent or the kernel sent
the signal. (A rank handles neither, and the agent knows its own signals.)"""
STOPPED_EXIT_CODE: Final = 128 + signal.SIGTERM
"""Exit code of a pod that was stopped before its ranks were done."""


def pod_exit_code(code: int) -> int:
    """Exit code of a process as a pod shows it: signals become 128 + n."""
    return 128 - code if code < 0 else code


def describe_exit_code(code: int) -> str:
    """Describe an exit code. A negative code is minus the number of a signal."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    try:
        return f"exit code {code} ({ExitCode(code).name})"
    except ValueError:
        return f"exit code {code}"
