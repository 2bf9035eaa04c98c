"""How an attempt ends for this pod: pure values, and the judgement on its ranks' exit codes.

A rank that dies takes its peers with it: their collectives fail and they exit with PEER_LOST,
sometimes before the culprit's own exit is seen. So a PEER_LOST alone proves nothing yet: the other
ranks get a moment to say something better.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumline_trainer.contract import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Every rank of this pod exited with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt cannot succeed any more."""

    exit_code: int
    """The pod's exit code: a contract.ExitCode, or 128 + signal."""
    reason: str
    rank: int | None = None
    """The rank to blame, if it is one of ours."""


@dataclass(frozen=True, slots=True)
class Suspected:
    """A rank lost its peers; who is to blame is not known yet."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """The pod was told to stop."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A record of a higher generation came."""


def judge(exits: Mapping[int, int], *, ranks: int) -> Succeeded | Failed | Suspected | None:
    """Verdict on the exits so far, by global rank in the order they came; None: go on."""
    for rank, code in exits.items():
        if code not in (ExitCode.OK, ExitCode.PEER_LOST):
            return Failed(exit_code=pod_code(code), reason=describe(code), rank=rank)
    lost = [rank for rank, code in exits.items() if code == ExitCode.PEER_LOST]
    if lost and len(exits) == ranks:
        return peer_lost("lost its peers", rank=lost[0])
    if lost:
        return Suspected()
    return Succeeded() if len(exits) == ranks else None


def peer_lost(reason: str, *, rank: int | None = None) -> Failed:
    """Another member of the gang went away."""
    return Failed(exit_code=ExitCode.PEER_LOST, reason=reason, rank=rank)


def pod_code(code: int) -> int:
    """Exit code of a process as a pod shows it: signals become 128 + n."""
    return 128 - code if code < 0 else code


def describe(code: int) -> str:
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
