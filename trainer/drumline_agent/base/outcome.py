"""Outcomes of a pod's part in its gang: pure values."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract import FaultClass


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Every rank of the gang is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The gang cannot continue in this pod."""

    exit_code: int
    """The pod's exit code: a contract.ExitCode, or 128 + signal."""
    reason: str
    rank: int | None = None
    """The rank that is the root cause, if it runs in this pod."""
    fault_class: FaultClass | None = None


@dataclass(frozen=True, slots=True)
class Preempted:
    """Every rank of this pod has ended after a notice, with a checkpoint."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The pod received SIGTERM or SIGINT."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A record of a higher generation has arrived."""


Outcome = Succeeded | Failed | Preempted | StopRequested | Superseded
