"""How a pod's part in its gang ends: pure values, and exit codes in words."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from drumline_trainer.contract import ExitCode, FaultClass


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Every rank of the gang was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The gang does not go on in this pod."""

    exit_code: int
    """The pod's exit code: a contract.ExitCode, or 128 + signal."""
    reason: str
    rank: int | None = None
    """The rank to blame, if it is one of ours."""
    fault_class: FaultClass | None = None


@dataclass(frozen=True, slots=True)
class Preempted:
    """Every rank of this pod has left on request, with a checkpoint."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The pod was told to stop."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A record of a higher generation came."""


Outcome = Succeeded | Failed | Preempted | StopRequested | Superseded


def pod_exit_code(code: int) -> int:
    """Exit code of a process as a pod shows it: signals become 128 + n."""
    return 128 - code if code < 0 else code


def describe_exit_code(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    try:
        return f"exit code {code} ({ExitCode(code).name})"
    except ValueError:
        return f"exit code {code}"
