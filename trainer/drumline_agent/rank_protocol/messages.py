"""Everything that a rank sends to its agent: heartbeats and events, a line of JSON each.

Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

from drumline_agent.rank_protocol.collective_progress import CollectiveProgress, parse_progress
from drumline_agent.rank_protocol.heartbeat import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesced:
    """The rank has left the collectives of this membership and waits for a new placement."""

    generation: int
    attempt: int
    step: int
    """Finished optimizer steps when it left."""
    reason: str

    def to_json(self) -> str:
        """Return one line of JSON."""
        return _event("parked", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """A snapshot of this rank is complete in the snapshot folder."""

    step: int
    generation: int
    attempt: int
    bytes: int
    """Size of the whole file."""
    sha256: str
    """SHA-256 of the file's body, equal to that in its header."""
    seconds: float
    """Seconds for which training stopped for it."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return _event("snapshot", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSaved:
    """The answer to a notice, the same from every rank."""

    notice: str
    """Its id."""
    step: int | None = None
    """The checkpoint that is committed and was read back; None where there is none."""
    digest: str = ""
    """Digest of its manifest."""
    error: str = ""
    """Why there is none."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return _event("saved", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsContinued:
    """The fixed prompts of an evaluation were continued. Rank 0 sends it."""

    answers: str
    """The text of `drumline_contract.prompt_answers`."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return _event("continued", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesReported:
    """The answer to `ReportCollectives`."""

    generation: int
    attempt: int
    progress: CollectiveProgress

    def to_json(self) -> str:
        """Return one line of JSON."""
        return _event("collectives", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """The last line of a rank that raised."""

    error: str

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RankReturned:
    """The last line of a rank whose work is done, which an exit code of 0 alone does not say."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps({"returned": True})


RankMessage = (
    Heartbeat
    | Quiesced
    | SnapshotTaken
    | NoticeSaved
    | PromptsContinued
    | CollectivesReported
    | RankError
    | RankReturned
)
"""Everything that a rank sends."""


def parse_rank_message(line: str) -> RankMessage:
    """Read any line of a rank. Raises KeyError, TypeError or ValueError for anything else."""
    raw: object = json.loads(line)
    if not isinstance(raw, dict):
        raise TypeError(f"not a message of a rank: {type(raw).__name__}")
    whole = cast("dict[str, Any]", raw)
    match whole:
        case {"parked": fields}:
            return Quiesced(**fields)
        case {"snapshot": fields}:
            return SnapshotTaken(**fields)
        case {"saved": fields}:
            return NoticeSaved(**fields)
        case {"continued": {"answers": str(answers)}}:
            return PromptsContinued(answers=answers)
        case {"collectives": {"generation": generation, "attempt": attempt, "progress": progress}}:
            return CollectivesReported(
                generation=generation, attempt=attempt, progress=parse_progress(progress)
            )
        case {"error": error}:
            return RankError(error=str(error))
        case {"returned": True}:
            return RankReturned()
        case _:
            return Heartbeat.from_fields(whole)


def _event(name: str, fields: dict[str, Any]) -> str:
    return json.dumps({name: fields}, sort_keys=True, separators=(",", ":"))
