"""Orders of the agent to a rank: lines of JSON on the control pipe. Standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

from drumline_trainer.rank_protocol.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Leave the old membership, if still in it, and join this one."""

    placement: Placement

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"resume": json.loads(self.placement.to_json())})


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """Break out of the collectives of this membership and of lower ones, and send `Quiesced`."""

    generation: int
    attempt: int

    @property
    def membership(self) -> tuple[int, int]:
        """(generation, attempt), compared lexicographically."""
        return (self.generation, self.attempt)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"interrupt": asdict(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNotice:
    """Save at the next step boundary that all ranks agree on, and answer with `NoticeSaved`."""

    id: str
    leave: bool
    """Exit with PREEMPTED once it is saved; else go on training."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"notice": asdict(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Drop the notice with this id, unless the ranks have agreed on it already."""

    id: str

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"withdraw": asdict(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """This rank's snapshot of the step has reached the memory of another node."""

    step: int
    seconds: float
    """How long the transfer took."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"replicated": asdict(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCollectives:
    """Say how far this rank is in its collectives, if the backend knows (`CollectivesReported`)."""

    generation: int
    attempt: int

    @property
    def membership(self) -> tuple[int, int]:
        """(generation, attempt), compared lexicographically."""
        return (self.generation, self.attempt)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"report_collectives": asdict(self)})


RankOrder = Resume | Interrupt | SaveNotice | Withdraw | Replicated | ReportCollectives


def parse_rank_order(line: str | bytes) -> RankOrder:
    """Read any `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
    raw: object = json.loads(line)
    if not isinstance(raw, dict):
        raise TypeError(f"not an order: {line[:80]!r}")
    whole = cast("dict[str, Any]", raw)
    match whole:
        case {"resume": placement}:
            return Resume(placement=Placement.from_json(json.dumps(placement)))
        case {"interrupt": fields}:
            return Interrupt(**fields)
        case {"notice": fields}:
            return SaveNotice(**fields)
        case {"withdraw": fields}:
            return Withdraw(**fields)
        case {"replicated": fields}:
            return Replicated(**fields)
        case {"report_collectives": fields}:
            return ReportCollectives(**fields)
        case _:
            raise ValueError(f"not an order: {line[:80]!r}")
