"""What a rank says about itself, line by line. Standard library only.

Most lines are heartbeats, one whenever the phase changes. Where phases change faster than once in
`heartbeat_seconds` some are left out, but never the newest for longer than that: so a rank that
stands still is last heard where it stands (`Heartbeat.position`). All are made by the training
thread: silence means that it does not get on. `time_seconds` is the sender's monotonic clock,
comparable between processes of one machine only.

The other lines are events: `Quiesced`, `SnapshotTaken`, `NoticeSaved`. `parse_rank_message`
reads any of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from drumline_trainer.contract import RestoreTier


class Phase(StrEnum):
    """What a rank is doing, in the order of a step. Collectives wait in all but `data`."""

    STARTING = "starting"
    RESTORING = "restoring"
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    DONE = "done"


_ORDER = {phase: number for number, phase in enumerate(Phase)}
_BEFORE_TRAINING = (Phase.STARTING, Phase.RESTORING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One sign of life."""

    generation: int
    attempt: int
    rank: int
    step: int
    """Finished optimizer steps."""
    total_steps: int
    phase: Phase
    micro_batch: int = 0
    """Which part of the step's share is under way, where it is done in several."""
    loss: float | None = None
    """Mean over the global batch, at log cadence; the same on every rank."""
    gradient_norm: float | None = None
    """Before clipping; of the same step as the loss."""
    tokens_per_second: float | None = None
    """Over all ranks, since the last logged step."""
    step_seconds: float | None = None
    """Mean since the last logged step, checkpoints excluded."""
    step_parts: Mapping[str, float] | None = None
    """Mean seconds of a step by step part (`metrics.step_timer`), with saving in between."""
    memory_bytes: Mapping[str, int] | None = None
    """Of this rank by category (`metrics.memory`)."""
    mfu: float | None = None
    """Model FLOP utilization (`metrics.flops`); None on a device without a known peak."""
    checkpoint_step: int | None = None
    """Newest checkpoint this attempt committed or restored."""
    checkpoint_digest: str = ""
    """Digest of that checkpoint's manifest."""
    checkpoint_seconds: float | None = None
    """How long training stood still for the newest commit."""
    restored_step: int | None = None
    """Where this attempt went on from; None while it is not known yet."""
    restored_from: RestoreTier | None = None
    """MEMORY, STORAGE or INITIAL: which kind of copy that was."""
    snapshot_every_steps: int | None = None
    """How often a snapshot is taken, by its measured cost; None where none are taken."""
    snapshot_seconds: float | None = None
    """How long training stood still for the newest snapshot."""
    time_seconds: float
    """The sender's monotonic clock."""

    @property
    def position(self) -> tuple[int, int, int]:
        """How far this rank is; ranks of one attempt pass the same positions in this order."""
        if self.phase in _BEFORE_TRAINING:
            return (-1, 0, _ORDER[self.phase])
        return (self.step, self.micro_batch, _ORDER[self.phase])

    def to_json(self) -> str:
        """One line of JSON; a figure that is not finite becomes null."""
        whole = asdict(self)
        for key in ("loss", "gradient_norm", "tokens_per_second"):
            if whole[key] is not None and not math.isfinite(whole[key]):
                whole[key] = None
        return json.dumps(whole, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Heartbeat:
        """Read `to_json`'s line. Raises TypeError or ValueError for anything else."""
        return cls._of(json.loads(text))

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> Heartbeat:
        tier = raw.get("restored_from")
        return cls(
            **{
                **raw,
                "phase": Phase(raw["phase"]),
                "restored_from": None if tier is None else RestoreTier(tier),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesced:
    """The rank has left the collectives of this membership and waits for a new placement."""

    generation: int
    attempt: int
    step: int
    """Finished optimizer steps when it left."""
    reason: str

    def to_json(self) -> str:
        """One line of JSON."""
        return _event("parked", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """A snapshot of this rank lies complete in the snapshot folder."""

    step: int
    generation: int
    attempt: int
    bytes: int
    """Size of the whole file."""
    sha256: str
    """Of the file's body; its header says the same."""
    seconds: float
    """How long training stood still for it."""

    def to_json(self) -> str:
        """One line of JSON."""
        return _event("snapshot", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSaved:
    """The answer to a notice, the same from every rank."""

    notice: str
    """Its id."""
    step: int | None = None
    """The checkpoint that is committed and was read back; None where there is none."""
    digest: str = ""
    """Of its manifest."""
    error: str = ""
    """Why there is none."""

    def to_json(self) -> str:
        """One line of JSON."""
        return _event("saved", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """The last line of a rank that raised."""

    error: str

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


RankMessage = Heartbeat | Quiesced | SnapshotTaken | NoticeSaved | RankError
"""Everything a rank says."""


def parse_rank_message(line: str) -> RankMessage:
    """Read any line of a rank. Raises KeyError, TypeError or ValueError for anything else."""
    match json.loads(line):
        case {"parked": dict(raw)}:
            return Quiesced(**raw)
        case {"snapshot": dict(raw)}:
            return SnapshotTaken(**raw)
        case {"saved": dict(raw)}:
            return NoticeSaved(**raw)
        case {"error": error}:
            return RankError(error=str(error))
        case dict(raw):
            return Heartbeat._of(raw)  # noqa: SLF001 - the same module
        case other:
            raise TypeError(f"no line of a rank: {type(other).__name__}")


def _event(name: str, fields: dict[str, Any]) -> str:
    return json.dumps({name: fields}, sort_keys=True, separators=(",", ":"))
