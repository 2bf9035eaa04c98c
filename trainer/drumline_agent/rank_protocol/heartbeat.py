"""A rank's heartbeats: one line of JSON whenever its phase changes. Standard library only.

Where phases change more often than once in `heartbeat_seconds` some heartbeats are left out, but
never the newest for longer than that: so a rank that hangs was last heard where it hangs
(`Heartbeat.position`). All are sent by the training thread: silence means that it makes no
progress. `time_seconds` is the sender's monotonic clock, comparable between processes of one
machine only. The other lines that a rank sends are in `messages`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from drumline_contract import RestoreTier


class Phase(StrEnum):
    """Activity of a rank, in the order of a step. Collectives wait in all but `data`."""

    STARTING = "starting"
    RESTORING = "restoring"
    RUNNING = "running"
    """A command of the user runs, whose steps are not known."""
    EVALUATION = "evaluation"
    """The loss is measured on samples that are not trained on."""
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    DONE = "done"


_ORDER = {phase: number for number, phase in enumerate(Phase)}
_BEFORE_TRAINING = (Phase.STARTING, Phase.RESTORING, Phase.RUNNING)
_MEASUREMENTS = ("loss", "gradient_norm", "tokens_per_second")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The state of one rank when it entered a phase."""

    generation: int
    attempt: int
    rank: int
    step: int
    """Finished optimizer steps."""
    total_steps: int
    phase: Phase
    micro_batch: int = 0
    """Number of the micro-batch within the step."""
    loss: float | None = None
    """Mean over the global batch, at log cadence; the same on every rank."""
    gradient_norm: float | None = None
    """Before clipping; of the same step as the loss."""
    tokens_per_second: float | None = None
    """Over all ranks, since the last logged step."""
    step_seconds: float | None = None
    """Mean since the last logged step, checkpoints excluded."""
    step_parts: Mapping[str, float] | None = None
    """Mean seconds of a step by what it was spent on (`metrics.timer`)."""
    measured_step: int | None = None
    """Finished steps when these parts were measured."""
    stage: int = 0
    """Place in its pipeline: ranks of one stage have the same work."""
    memory_bytes: Mapping[str, int] | None = None
    """Memory of this rank by category (`metrics.memory`)."""
    layout: str = ""
    """Layout of this membership in one line, with its predicted cost if the planner chose it."""
    predicted_step_seconds: float | None = None
    """Prediction of the planner. None if it does not know the device."""
    compared_parts: Mapping[str, Sequence[float]] | None = None
    """Measured and predicted seconds of a step of this layout, by `contract.StepPart`."""
    mfu: float | None = None
    """Model FLOP utilization (`contract.shapes.flops`); None on a device without a known peak."""
    checkpoint_step: int | None = None
    """Newest checkpoint that this attempt committed or restored."""
    checkpoint_digest: str = ""
    """Digest of that checkpoint's manifest."""
    checkpoint_seconds: float | None = None
    """Seconds for which training stopped for the newest checkpoint."""
    restored_step: int | None = None
    """The step that this attempt restored; None while it is not known yet."""
    restored_from: RestoreTier | None = None
    """MEMORY, STORAGE or INITIAL."""
    snapshot_every_steps: int | None = None
    """Interval between snapshots, by their measured cost; None where none are taken."""
    snapshot_seconds: float | None = None
    """Seconds for which training stopped for the newest snapshot."""
    time_seconds: float
    """The sender's monotonic clock."""

    @property
    def predicted_tokens_per_second(self) -> float | None:
        """Predicted rate. None before a step was measured, or for an unknown device."""
        if not self.predicted_step_seconds or None in (self.tokens_per_second, self.step_seconds):
            return None
        tokens = (self.tokens_per_second or 0.0) * (self.step_seconds or 0.0)
        return tokens / self.predicted_step_seconds

    @property
    def position(self) -> tuple[int, int, int]:
        """(step, micro-batch, phase): ranks of one attempt pass the same positions in order."""
        if self.phase in _BEFORE_TRAINING:
            return (-1, 0, _ORDER[self.phase])
        return (self.step, self.micro_batch, _ORDER[self.phase])

    def to_json(self) -> str:
        """Return one line of JSON; a measurement that is not finite becomes null."""
        whole = asdict(self)
        for key in _MEASUREMENTS:
            if whole[key] is not None and not math.isfinite(whole[key]):
                whole[key] = None
        return json.dumps(whole, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Heartbeat:
        """Read `to_json`'s line. Raises KeyError, TypeError or ValueError for anything else."""
        return cls.from_fields(json.loads(text))

    @classmethod
    def from_fields(cls, raw: dict[str, Any]) -> Heartbeat:
        """Read a decoded line. Raises KeyError, TypeError or ValueError for anything else."""
        tier = raw.get("restored_from")
        typed: dict[str, Any] = {
            "phase": Phase(raw["phase"]),
            "restored_from": None if tier is None else RestoreTier(tier),
        }
        return cls(**(raw | typed))
