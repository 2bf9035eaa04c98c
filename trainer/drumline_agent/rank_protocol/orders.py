"""Orders of the agent to a rank: lines of JSON on the control pipe. Standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, cast

from drumline_agent.rank_protocol.placement import Placement

_RESUME: Final = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """A line of JSON: an object whose only key is the order's kind."""

    KIND: ClassVar[str]

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps({self.KIND: asdict(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _OrderToMembership(_Order):
    generation: int
    attempt: int

    @property
    def membership(self) -> tuple[int, int]:
        """(generation, attempt), compared lexicographically."""
        return (self.generation, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Leave the old membership, if still in it, and join this one."""

    placement: Placement

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps({_RESUME: json.loads(self.placement.to_json())})


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt(_OrderToMembership):
    """Break out of the collectives of this membership and of lower ones, and send `Quiesced`."""

    KIND = "interrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNotice(_Order):
    """Save at the next step boundary that all ranks agree on, and answer with `NoticeSaved`."""

    KIND = "notice"

    id: str
    leave: bool
    """Exit with PREEMPTED once it is saved; otherwise continue training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(_Order):
    """Drop the notice with this id, unless the ranks have agreed on it already."""

    KIND = "withdraw"

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated(_Order):
    """This rank's snapshot of the step has reached the memory of another node."""

    KIND = "replicated"

    step: int
    seconds: float
    """Duration of the transfer."""
    processor_seconds: float = 0.0
    """This rank's share of the processor time that its agent took from the snapshot to the end of
    the transfer, to send it and to receive a peer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCollectives(_OrderToMembership):
    """Say how far this rank is in its collectives, if the backend knows (`CollectivesReported`)."""

    KIND = "report_collectives"


RankOrder = Resume | Interrupt | SaveNotice | Withdraw | Replicated | ReportCollectives
_KINDS: Final = {
    kind.KIND: kind for kind in (Interrupt, SaveNotice, Withdraw, Replicated, ReportCollectives)
}


def parse_rank_order(line: str | bytes) -> RankOrder:
    """Read any `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
    raw: object = json.loads(line)
    if not isinstance(raw, dict):
        raise TypeError(f"not an order: {line[:80]!r}")
    for name, fields in cast("dict[str, Any]", raw).items():
        if name == _RESUME:
            return Resume(placement=Placement.from_json(json.dumps(fields)))
        if name in _KINDS:
            return _KINDS[name](**fields)
    raise ValueError(f"not an order: {line[:80]!r}")
